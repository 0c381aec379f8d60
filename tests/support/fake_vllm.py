"""A stand-in for `vllm` 0.32 where the real one is too slow or a fault is wanted.

To kdeploy it looks like the real program, because it does what the real one was recorded doing: it
prints the lines of tests/golden (real starts) with its own process ids and the values it was given,
makes the same tree in one session (main, resource tracker, VLLM::EngineCore, VLLM::Worker), maps
shared memory under the same names, leaves the same files behind, binds its port early and listens
late, swallows SIGTERM while it loads, and speaks the same HTTP. Nothing in kdeploy knows of it.

FAKE_VLLM_FAULT   one of: exit-during-load, hang-at-weights, die-on-first-request, die-after-ready,
                  wrong-answer, empty-answer, truncated, reasoning, ignore-term, other-context,
                  other-kv-type (the log says fp8 whatever was asked), no-kv-line (it does not say),
                  hang-after-first (the second request is never answered, /health stays 200),
                  gpu-memory-stuck (a GPU keeps memory after the end, with FAKE_NVML_FILE),
                  late-lines (a second API server says that it is up while the first one answers)
FAKE_VLLM_FITS    longest context that is not refused
FAKE_VLLM_STEP_MS pause at each of the stages of a start (default 20)
FAKE_VLLM_TOKEN_MS pause before each token (default 1)
"""

import json
import mmap
import os
import pathlib
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import resource_tracker, shared_memory

GOLDEN = pathlib.Path(GOLDEN_DIR)  # noqa: F821 (set by the script that the tests write as bin/vllm)
FAULT = os.environ.get("FAKE_VLLM_FAULT", "")
STEP = float(os.environ.get("FAKE_VLLM_STEP_MS", "20")) / 1e3
TOKEN = float(os.environ.get("FAKE_VLLM_TOKEN_MS", "1")) / 1e3
COUNT = "\n".join(f"{n}. {n}" for n in range(1, 21))


# --- the processes below the API server --------------------------------------------------------


def become(title):
    """Shows a title as setproctitle does for `comm`; argv[0] was given by the parent."""
    import ctypes

    ctypes.CDLL(None).prctl(15, title.encode()[:15], 0, 0, 0)


def start_child(title, role, tracker_fd, **options):
    """Starts this program again under another title; Python cannot find itself by such a name."""
    python = os.environ.setdefault("FAKE_VLLM_PYTHON", sys.executable)
    env = {**os.environ, "PYTHONHOME": sys.base_prefix}
    arguments = [title, sys.argv[0], "--role", role, str(tracker_fd)]
    return subprocess.Popen(
        arguments, executable=python, env=env, pass_fds=[tracker_fd], stdin=subprocess.DEVNULL, **options
    )


def engine_core(tracker_fd):
    become("VLLM::EngineCore")
    resource_tracker._resource_tracker._fd = tracker_fd
    ring = shared_memory.SharedMemory(name="psm_" + secrets.token_hex(4), create=True, size=167_772_180)
    worker = start_child("VLLM::Worker", "worker", tracker_fd)
    print("worker", worker.pid, flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while not ended.wait(0.02) and worker.poll() is None:
        pass
    worker.terminate()
    worker.wait()
    ring.close()
    ring.unlink()


def worker(tracker_fd):
    become("VLLM::Worker")
    resource_tracker._resource_tracker._fd = tracker_fd
    ring = shared_memory.SharedMemory(name="psm_" + secrets.token_hex(4), create=True, size=251_658_260)
    if os.environ.get("FAKE_NVML_FILE"):
        with open(os.environ["FAKE_NVML_FILE"], "a") as gpus:
            gpus.write(f"process 0 {os.getpid()} 81000\n")
            if FAULT == "gpu-memory-stuck":
                gpus.write("stuck 0 5000\n")
    # Not registered with the tracker: a clean end leaks it, as the CPU build does.
    leaked = f"/dev/shm/vllm_dist_{secrets.token_hex(16)}-tp:0-[0-1]-cpushm_0"
    with open(leaked, "w+b") as file:
        file.truncate(8192)
        buffer = mmap.mmap(file.fileno(), 8192)
    buffer[0] = 1
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended.wait()
    ring.close()
    ring.unlink()


# --- the API server ----------------------------------------------------------------------------


class Options:
    def __init__(self, words):
        self.model = None
        self.flags = {}
        words = list(words)
        while words:
            word = words.pop(0)
            if not word.startswith("--"):
                self.model = self.model or word
            elif "=" in word:
                name, value = word[2:].split("=", 1)
                self.flags[name] = value
            elif words and not words[0].startswith("--"):
                self.flags[word[2:]] = words.pop(0)
            else:
                self.flags[word[2:]] = True

    def get(self, name, default):
        return self.flags.get(name, default)


class Engine:
    """What the API server knows; guarded by one lock."""

    def __init__(self, options):
        self.options = options
        self.name = str(options.get("served-model-name", options.model))
        self.lock = threading.Lock()
        self.running = 0
        self.tokens = 0
        self.finished = 0
        self.dead = False
        self.stopping = threading.Event()
        self.ready = False
        self.core = None
        self.worker_pid = 0

    def per_token(self):
        config = json.loads((pathlib.Path(self.options.model) / "config.json").read_text())
        head = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        return config["num_hidden_layers"] * 2 * config["num_key_value_heads"] * head * 2

    def space_for(self, tokens):
        return self.per_token() * tokens

    def kv_tokens(self):
        space = int(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")) << 30
        return space // self.per_token() // 128 * 128


def say(line, stream=None):
    out = stream or sys.stdout
    out.write(line)
    out.flush()


def recorded(name):
    return (GOLDEN / name).read_bytes().decode("utf-8", "replace").splitlines(keepends=True)


def adapt(line, engine):
    options = engine.options
    context = str(options.get("max-model-len", "4096"))
    if FAULT == "other-context" and "Using max model len" in line:
        context = "1234"
    if "LLM engine" in line:
        dtype = "fp8_e4m3" if FAULT == "other-kv-type" else options.get("kv-cache-dtype", "auto")
        line = line.replace("kv_cache_dtype=auto", f"kv_cache_dtype={dtype}")
        if FAULT == "no-kv-line":
            line = line.replace("kv_cache_dtype=", "kv_cache_type=")
    core = engine.core.pid if engine.core else 0
    line = line.replace("/models/tiny-qwen3", options.model).replace("Qwen3ForCausalLM", "LlamaForCausalLM")
    line = re.sub(r"pid=7852\b", f"pid={os.getpid()}", line)
    line = re.sub(r"pid=8237\b", f"pid={core}", line)
    line = re.sub(r"pid=8608\b", f"pid={engine.worker_pid}", line)
    line = line.replace("[7852]", f"[{os.getpid()}]")
    line = re.sub(r"(max model len |'max_model_len': )4096", rf"\g<1>{context}", line)
    line = line.replace("http://0.0.0.0:8020", f"http://{options.get('host', '')}:{options.get('port', 8000)}")
    if "KV cache size" in line:
        tokens = engine.kv_tokens()
        share = tokens / int(context)
        line = re.sub(
            r"1,048,576 tokens, .*",
            f"{tokens:,} tokens, Maximum concurrency for {int(context):,} tokens per request: {share:.2f}x",
            line,
        )
    return line


def from_stderr(line):
    return not line.startswith("(") or line.startswith("(VllmWorker")


def start(engine, tracker_fd):
    """Prints a recorded start; the tree grows at the lines at which the real one's does."""
    lines = recorded("start-vllm-0.32-cpu-compile.log")
    end = next(i for i, line in enumerate(lines) if "Application startup complete." in line)
    for line in lines[: end + 1]:
        if "(EngineCore" in line and engine.core is None:
            engine.core = start_child("VLLM::EngineCore", "engine", tracker_fd, stdout=subprocess.PIPE, text=True)
            engine.worker_pid = int(engine.core.stdout.readline().split()[1])
            leave_sockets()
        if "Loading safetensors" in line and FAULT == "hang-at-weights":
            signal.pause()
            while True:
                time.sleep(60)
        if "Explicitly set" in line and FAULT == "exit-during-load":
            return fail_to_start(engine)
        fits = int(os.environ.get("FAKE_VLLM_FITS", "0"))
        asked = int(engine.options.get("max-model-len", 4096))
        if "Explicitly set" in line and fits and asked > fits:
            return refuse_context(engine, asked, fits)
        if re.search(r"Resolved arch|Initializing a V1|rank 0 in world|Loading weights took|Warming up done|init engine", line):
            time.sleep(STEP)
        if engine.core and engine.core.poll() is not None:
            return fail_to_start(engine)
        say(adapt(line, engine), sys.stderr if from_stderr(line) else sys.stdout)
    return 0


def fail_to_start(engine):
    print_failure("fail-nvfp4-key-missing-vllm-0.32-cpu.log")
    stop_core(engine)
    return 1


def refuse_context(engine, asked, fits):
    """What a real engine says when one request of full length does not fit."""
    needs = engine.space_for(asked) / (1 << 30)
    has = engine.space_for(fits) / (1 << 30)
    for line in recorded("fail-context-too-large-vllm-0.32-cpu.log"):
        line = line.replace("1000000", str(asked)).replace("3.22 GiB", f"{needs:.2f} GiB")
        line = line.replace("memory (1.0 GiB)", f"memory ({has:.2f} GiB)").replace("310672", str(fits))
        if "ERROR" in line or not line.startswith("("):
            say(line, sys.stderr)
    stop_core(engine)
    return 1


def print_failure(name):
    for line in recorded(name):
        if "ERROR" in line or not line.startswith("("):
            say(line, sys.stderr)


def leave_sockets():
    base = os.environ.get("VLLM_RPC_BASE_PATH") or os.environ.get("TMPDIR") or "/tmp"
    for _ in range(3):
        endpoint = socket.socket(socket.AF_UNIX)
        endpoint.bind(os.path.join(base, str(uuid.uuid4())))
        endpoint.close()


def stop_core(engine):
    if engine.core and engine.core.poll() is None:
        engine.core.terminate()
        try:
            engine.core.wait(5)
        except subprocess.TimeoutExpired:
            engine.core.kill()
            engine.core.wait()


def answer_for(prompt):
    if FAULT == "empty-answer":
        return ""
    if "capital of France" in prompt:
        if FAULT == "wrong-answer":
            return "The capital of France is Berlin."
        return "The capital of France is Paris." if "?" in prompt else " Paris. It is a city on the Seine"
    if "Count from 1" in prompt:
        return COUNT
    return "Hello! How can I help you today?"


def tokens_of(text):
    """Pieces of about the size of tokens; the two known answers get their real counts."""
    pieces = re.findall(r"\d|\n|[^\w\s]|\s?[A-Za-z']+|\s", text)
    if text.startswith("The capital of France is"):
        pieces = ["The", " capital", " of", " France", " is", text[24:-1], "."]
    return pieces


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = None

    def log_message(self, format, *args):
        quiet = str(self.engine.options.get("disable-access-log-for-endpoints", "")).split(",")
        if self.path not in quiet:
            host, port = self.client_address[:2]
            status = "200 OK" if "200" in str(args) else str(args[-2] if len(args) > 1 else "")
            say(f'INFO:     {host}:{port} - "{self.command} {self.path} HTTP/1.1" {status}\n')

    def send_json(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send_text(self, status, text, kind="text/plain"):
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status, message, kind):
        self.send_json(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})

    def is_allowed(self):
        key = os.environ.get("VLLM_API_KEY")
        if key and self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {key}":
            self.send_json(401, {"error": "Unauthorized"})
            return False
        return True

    def do_GET(self):
        engine = self.engine
        if not self.is_allowed():
            return
        if self.path in ("/health", "/ping"):
            self.send_text(503 if engine.dead else 200, "")
        elif self.path == "/version":
            self.send_json(200, {"version": "0.32.0+cpu"})
        elif self.path == "/v1/models":
            context = int(engine.options.get("max-model-len", 4096))
            model = {
                "id": engine.name, "object": "model", "created": int(time.time()), "owned_by": "vllm",
                "root": engine.options.model, "parent": None, "max_model_len": context, "permission": [],
            }
            self.send_json(200, {"object": "list", "data": [model]})
        elif self.path == "/metrics":
            label = f'{{engine="0",model_name="{engine.name}"}}'
            finished = f'{{engine="0",finished_reason="stop",model_name="{engine.name}"}}'
            self.send_text(200, "".join([
                "# TYPE vllm:num_requests_running gauge\n", f"vllm:num_requests_running{label} {engine.running}.0\n",
                f"vllm:num_requests_waiting{label} 0.0\n", f"vllm:kv_cache_usage_perc{label} 0.0\n",
                f"vllm:generation_tokens_total{label} {engine.tokens}.0\n",
                f"vllm:request_success_total{finished} {engine.finished}.0\n",
            ]))
        else:
            self.send_json(404, {"detail": "Not Found"})

    def do_POST(self):
        engine = self.engine
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if not self.is_allowed():
            return
        if self.path not in ("/v1/chat/completions", "/v1/completions"):
            return self.send_json(404, {"detail": "Not Found"})
        try:
            request = json.loads(body)
        except ValueError:
            return self.refuse(400, "There was an error parsing the body", "BadRequestError")
        if request.get("model") != engine.name:
            words = f"The model `{request.get('model')}` does not exist. Valid aliases: {engine.name}."
            return self.refuse(404, words, "NotFoundError")
        if engine.dead or FAULT == "die-on-first-request":
            self.refuse(500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", "InternalServerError")
            if not engine.dead:
                self.die()
            return
        if FAULT == "hang-after-first" and engine.finished:
            time.sleep(3_600)
        with engine.lock:
            engine.running += 1
        try:
            self.generate(request)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with engine.lock:
                engine.running -= 1
                engine.finished += 1
        if FAULT == "die-after-ready":
            self.die()
        if FAULT == "late-lines" and engine.finished == 2:
            for line in recorded("start-vllm-0.32-cpu-compile.log"):
                if "Available routes" in line or line.startswith(("INFO:     Started", "INFO:     Application startup")):
                    say(adapt(line, engine))

    def die(self):
        for line in recorded("fail-mla-fp8-vllm-0.32-cpu.log"):
            if "ERROR" in line:
                say(line)
        self.engine.core.kill()

    def generate(self, request):
        engine = self.engine
        chat = self.path == "/v1/chat/completions"
        if chat:
            messages = request.get("messages") or []
            if not messages:
                return self.refuse(400, "messages must not be empty", "BadRequestError")
            prompt = messages[-1]["content"]
        else:
            prompt = request["prompt"]
        budget = request.get("max_tokens") or request.get("max_completion_tokens") or 16
        if FAULT == "truncated":
            budget = min(budget, 3)
        text = answer_for(prompt)
        # The last token of a whole answer is the end mark, which carries no text.
        pieces = tokens_of(text)
        cut = len(pieces) + 1 > budget
        pieces = pieces[:budget]
        used = len(pieces) if cut else len(pieces) + 1
        reason = "length" if cut else "stop"
        prompt_tokens = 42 if "capital of France" in prompt else 39
        usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + used, "completion_tokens": used}
        head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(8),
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()), "model": engine.name,
        }
        if not request.get("stream"):
            whole = "".join(pieces)
            part = {"message": {"role": "assistant", "content": whole}} if chat else {"text": whole}
            choice = {"index": 0, **part, "finish_reason": reason}
            kind = "chat.completion" if chat else "text_completion"
            with engine.lock:
                engine.tokens += used
            return self.send_json(200, {**head, "object": kind, "choices": [choice], "usage": usage})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if chat:
            self.event({**head, "choices": [self.choice({"role": "assistant", "content": ""}, None)]})
        if FAULT == "reasoning":
            for piece in ["Let", " me", " think", "."]:
                self.event({**head, "choices": [self.choice({"reasoning_content": piece}, None)]})
        for number, piece in enumerate(pieces):
            time.sleep(TOKEN)
            last = cut and number + 1 == len(pieces)
            part = {"content": piece} if chat else piece
            with engine.lock:
                engine.tokens += 1
            self.event({**head, "choices": [self.choice(part, reason if last else None)]})
        if not cut:
            with engine.lock:
                engine.tokens += 1
            self.event({**head, "choices": [self.choice({"content": ""} if chat else "", reason)]})
        if (request.get("stream_options") or {}).get("include_usage"):
            self.event({**head, "choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def choice(self, part, reason):
        if isinstance(part, dict):
            return {"index": 0, "delta": part, "logprobs": None, "finish_reason": reason}
        return {"index": 0, "text": part, "logprobs": None, "finish_reason": reason}

    def event(self, body):
        self.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


def serve(words):
    options = Options(words)
    engine = Engine(options)
    Handler.engine = engine
    drain = float(options.get("shutdown-timeout", 0))
    server = Server((str(options.get("host", "127.0.0.1")), int(options.get("port", 8000))), Handler, False)
    server.server_bind()

    def on_term(*_):
        # Swallowed while it loads, as the real one does.
        if engine.ready and FAULT != "ignore-term":
            engine.stopping.set()

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, on_term)
    resource_tracker.ensure_running()
    code = start(engine, resource_tracker.getfd())
    if code:
        return code
    server.server_activate()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    engine.ready = True
    while not engine.stopping.wait(0.02):
        if engine.core.poll() is not None:
            engine.dead = True
            say(adapt("(APIServer pid=7852) ERROR 12-01 05:21:57 [async_llm.py:906] AsyncLLM output_handler failed.\n", engine))
            time.sleep(0.2)
            break
    end = time.monotonic() + drain
    while engine.running and not engine.dead and time.monotonic() < end:
        time.sleep(0.02)
    say("INFO:     Shutting down\nINFO:     Application shutdown complete.\n", sys.stderr)
    server.shutdown()
    server.server_close()
    stop_core(engine)
    if engine.dead:
        # Workers outlive a dead engine; the main process ends them before it ends with 0.
        try:
            os.kill(engine.worker_pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    say(f"INFO:     Finished server process [{os.getpid()}]\n", sys.stderr)
    return 0


def main():
    words = sys.argv[1:]
    if words[:1] == ["--role"]:
        {"engine": engine_core, "worker": worker}[words[1]](int(words[2]))
        return 0
    if words == ["--version"]:
        print("0.32.0+cpu")
        return 0
    if words[:1] == ["serve"]:
        become("vllm")
        return serve(words[1:])
    print(f"usage: vllm serve MODEL, not {words}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of requests must not hold up the end.
    os._exit(code)
