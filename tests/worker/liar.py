"""A stand-in for the worker that does what its first argument says. Honest in one mode, lying in all others.

Run as `python liar.py MODE KIT RESULT_FD PARENT_PID < job.json`. Never imported by the tests.
"""

import json
import os
import pickle
import signal
import struct
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save

MODE, FD, PARENT = sys.argv[1], int(sys.argv[3]), int(sys.argv[4])
if MODE == "dies_waiting_once" and not Path("../../attempted").exists():
    Path("../../attempted").touch()
    sys.exit(3)
if MODE == "never_reads":
    time.sleep(60)
DOCUMENT = sys.stdin.read()
if not DOCUMENT:
    sys.exit(0)
JOB = json.loads(DOCUMENT)
SENT = {p["kind"]: 0 for p in JOB.get("passes", ())}


def send(kind, payload):
    write(struct.pack(">cQ", kind, len(payload)) + payload)


def write(data):
    view = memoryview(data)
    while view:
        view = view[os.write(FD, view) :]


def values(start, stop):
    return np.sin(np.arange(start, stop, dtype=np.float64)[:, None] + np.arange(3)).astype(np.float32)


def blob(name, start, stop, dtypes=None):
    header = {"pass_name": name, "start": start, "stop": stop, "dtypes": dtypes or {"y": "float32"}}
    return save({"y": values(start, stop)}, metadata={"frame": json.dumps(header)})


def frame(name, start, stop, dtypes=None):
    SENT[name] = SENT.get(name, 0) + 1
    send(b"F", blob(name, start, stop, dtypes))


def frames():
    for p in JOB["passes"]:
        for low, high in p["ranges"]:
            for start in range(low, high, p["batch_size"]):
                frame(p["kind"], start, min(start + p["batch_size"], high))


def closing(**other):
    record = {
        "job_id": JOB["job_id"],
        "nonce": JOB["nonce"],
        "frames": SENT,
        "environment": {"settings": {"device": "cpu"}, "fingerprint": {"torch": "2"}, "notes": {}},
        "seconds": {"main": 0.5},
        "peak_memory_bytes": 1,
    }
    send(b"C", json.dumps(record | other).encode())


def refuse(**other):
    record = {"job_id": JOB["job_id"], "nonce": JOB["nonce"], "kind": "model", "stage": "load", "message": "no"}
    send(b"X", json.dumps(record | other).encode())


def facts(**other):
    record = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": [None, 3]}],
        "static_batch": None,
        "training": [],
        "parameter_dtypes": {"float32": 10},
    }
    send(b"P", json.dumps(record | other).encode())


def honest():
    frames()
    closing()


def honest_and_loud():
    os.write(1, b"Traceback (most recent call last):\n  all is lost\n" * 3)
    honest()
    os.write(2, b"C" * 100)


def honest_out_of_order():
    frame("main", 4, 10)
    frame("repeat", 0, 4)
    frame("main", 0, 4)
    closing()


def honest_in_drops():
    global write  # noqa: PLW0603
    whole = write

    def write(data):
        for at in range(0, len(data), 7):
            whole(data[at : at + 7])

    honest()


def killed():
    frame("main", 0, 4)
    os.kill(os.getpid(), signal.SIGKILL)


def segfaults():
    os.kill(os.getpid(), signal.SIGSEGV)


def fails_after_closing():
    honest()
    sys.exit(3)


def killed_after_closing():
    honest()
    os.kill(os.getpid(), signal.SIGKILL)


def ends_without_closing():
    frames()


def ends_at_once():
    os._exit(0)


def killed_in_a_frame():
    data = blob("main", 0, 4)
    write(struct.pack(">cQ", b"F", len(data)) + data[:-5])
    os.kill(os.getpid(), signal.SIGKILL)


def truncated_frame():
    data = blob("main", 0, 4)
    write(struct.pack(">cQ", b"F", len(data)) + data[:-5])


def truncated_header():
    write(b"F\0\0")


def truncated_closing():
    frames()
    write(struct.pack(">cQ", b"C", 1000) + b"{")


def wrong_nonce():
    frames()
    closing(nonce="0" * 32)


def wrong_job():
    frames()
    closing(job_id="another")


def wrong_nonce_in_refusal():
    refuse(nonce="0" * 32)


def sample_twice():
    frames()
    frame("main", 3, 5)
    closing()


def sample_missing():
    frame("main", 0, 4)
    frame("repeat", 0, 4)
    closing()


def pass_missing():
    frame("main", 0, 10)
    closing()


def sample_beyond():
    frame("main", 8, 12)
    closing()


def sample_before():
    frame("main", -1, 3)
    closing()


def empty_range():
    frame("main", 4, 4)
    closing()


def sample_of_another_pass():
    frames()
    frame("repeat", 4, 8)
    closing()


def unknown_pass():
    frame("batch-7", 0, 4)
    closing()


def counts_wrong():
    frames()
    closing(frames={"main": 1, "repeat": 1})


def counts_missing():
    frames()
    closing(frames={})


def huge_frame():
    write(struct.pack(">cQ", b"F", 1 << 60))
    time.sleep(60)


def huge_record():
    write(struct.pack(">cQ", b"C", 1 << 25))
    time.sleep(60)


def huge_frame_header():
    write(struct.pack(">cQQ", b"F", 1 << 32, 1 << 31))
    time.sleep(60)


def garbage():
    write(b"\x93NUMPY" * 100)
    time.sleep(60)


def not_safetensors():
    send(b"F", b"x" * 500)
    closing()


def tiny_frame():
    send(b"F", b"x")
    closing()


def empty_frame():
    send(b"F", b"")
    closing()


def empty_record():
    frames()
    send(b"C", b"")


def pickled_frame():
    send(b"F", pickle.dumps({"y": values(0, 4)}))
    closing()


def pickled_closing():
    frames()
    send(b"C", pickle.dumps({"job_id": JOB["job_id"], "nonce": JOB["nonce"]}))


def plain_safetensors():
    send(b"F", save({"y": values(0, 4)}))
    closing()


def other_dtype():
    frame("main", 0, 4, dtypes={"y": "float64"})
    closing()


def other_names():
    frame("main", 0, 4, dtypes={"z": "float32"})
    closing()


def _tampered(old, new):
    data = blob("main", 0, 4)
    changed = data.replace(old, new)
    assert changed != data
    assert len(changed) == len(data)
    send(b"F", changed)
    closing()


def shape_too_big():
    _tampered(b"[4,3]", b"[9,3]")


def offsets_too_big():
    _tampered(b"[0,48]", b"[0,99]")


def dtype_unknown():
    _tampered(b'"F32"', b'"Q99"')


def message_after_closing():
    honest()
    frame("main", 0, 4)


def message_after_refusal():
    refuse()
    closing()


def closing_twice():
    honest()
    closing()


def unasked_facts():
    facts()
    honest()


def infinite_seconds():
    frames()
    closing(seconds={"main": float("inf")})


def unknown_field():
    frames()
    closing(verdict="pass")


def hangs():
    frame("main", 0, 4)
    os.write(1, b"still loading\n")
    time.sleep(60)


def hangs_after_closing():
    honest()
    os.close(FD)
    time.sleep(60)


def ignores_sigterm():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b"not listening\n")
    time.sleep(60)


def leaves_a_child():
    """Its child holds every pipe and outlives it."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    honest()


def leaves_a_runaway():
    """Its child holds every pipe, in a session of its own, where no signal to the group arrives."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(3)
        os._exit(0)
    honest()


def dies_and_leaves_a_child():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def floods_its_log():
    line = b"::error::" + b"x" * 1000 + b"\n"
    for _ in range(3000):
        os.write(2, line)
    sys.exit(1)


def colours_its_log():
    sys.stderr.write("\x1b[31mred\x1b[0m\n  ::error file=a::boo\n##[error]x\n\u202egnol\x07\x00\n" + "x" * 999 + "\n")
    sys.exit(1)


def refuses():
    refuse(message="cannot \x1b[31mload\x1b[0m it")


def refuses_and_dies():
    refuse()
    os.kill(os.getpid(), signal.SIGKILL)


def cuda_error():
    refuse(kind="unavailable", stage="device", message="CUDA error: an illegal memory access was encountered")


def dumps_environment():
    descriptors = [path.name for path in Path("/proc/self/fd").iterdir()]
    dump = {"env": dict(os.environ), "cwd": str(Path.cwd()), "fds": descriptors}
    Path("environment.json").write_text(json.dumps(dump), encoding="utf-8")
    honest()


def once(name, then):
    """Do one thing in the first attempt, in the scratch folder of all attempts, and another in the second."""
    marker = Path("../../attempted")
    mode = then if marker.exists() else name
    marker.touch()
    globals()[mode]()


def crashes_once():
    once("killed", "honest")


def cuda_error_once():
    once("cuda_error", "honest")


def out_of_memory():
    refuse(kind="unavailable", stage="device", message="OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")


def out_of_memory_once():
    once("out_of_memory", "honest")


def slow():
    frame("main", 0, 4)
    time.sleep(0.3)
    frame("main", 4, 10)
    frame("repeat", 0, 4)
    closing()


def probes():
    facts()
    closing()


def probes_twice():
    facts()
    facts()
    closing()


def probes_without_facts():
    closing()


def exported(**other):
    send(b"E", json.dumps({"path": JOB.get("export_path"), "message": "opset 20"} | other).encode())


def weighed():
    counts = ("equal", "rearranged", "folded", "converted", "differing", "unexplained", "tensors", "missing")
    names = ("differences", "unexplained_names", "missing_names")
    send(b"W", json.dumps(dict.fromkeys(counts, 0) | {key: [] for key in names}).encode())


def exports():
    exported()
    weighed()
    closing()


def exports_without_weights():
    exported()
    closing()


def exports_twice():
    exported()
    exported()
    closing()


def exports_elsewhere():
    exported(path="/etc/passwd")
    closing()


def company():
    """Count who is on the same device 0.3 s from now, oneself included."""
    here, device = Path("../../here"), JOB["backend"]["device"]
    here.mkdir(exist_ok=True)
    mine = here / f"{device}#{os.getpid()}"
    mine.touch()
    time.sleep(0.3)
    count = len(list(here.glob(f"{device}#*")))
    time.sleep(0.3)
    mine.unlink()
    return count


def counts_company():
    frame("main", 0, 4)
    Path("company").write_text(str(company()), encoding="utf-8")
    frame("main", 4, 10)
    frame("repeat", 0, 4)
    closing()


def wants_the_device_alone():
    if company() > 1:
        out_of_memory()
    else:
        honest()


def dies_waiting_once():
    """The first process ends before it reads a job; see the top."""
    honest()


def unasked_export():
    exported(path=None)
    honest()


globals()[MODE]()
