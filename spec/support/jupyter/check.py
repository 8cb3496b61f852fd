"""Drives the kernel with Jupyter's own client (PyPI: jupyter_client) and prints what it found.

    python spec/support/jupyter/check.py build/accel-run
"""
import atexit
import os
import signal
import subprocess
import sys
import tempfile
import time

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

host = os.path.abspath(sys.argv[1])
folder = tempfile.mkdtemp()
os.environ["ACCELERATE_HISTORY"] = os.path.join(folder, "history")
subprocess.run([host, "kernel", "install", "--prefix", folder], check=True, stdout=subprocess.DEVNULL)
specs = KernelSpecManager(kernel_dirs=[folder + "/share/jupyter/kernels"], ensure_native_kernel=False)
assert specs.get_kernel_spec("accel").language == "lua"

atexit.register(lambda: manager.is_alive() and manager.shutdown_kernel(now=True))
manager = KernelManager(kernel_name="accel", kernel_spec_manager=specs)
checks = 0


def check(what, ok, *facts):
    global checks
    if not ok:
        print("FAILED:", what, *facts)
        sys.exit(1)
    checks += 1


def run(client, code, timeout=20, **options):
    """The reply and the messages of iopub that belong to the request."""
    seen = []
    reply = client.execute_interactive(code, timeout=timeout, output_hook=seen.append, **options)
    return reply["content"], [(m["msg_type"], m["content"]) for m in seen]


def text(messages, name="stdout"):
    return "".join(c["text"] for k, c in messages if k == "stream" and c["name"] == name)


def of(messages, kind):
    return [c for k, c in messages if k == kind]


began = time.time()
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=20)
started = time.time() - began
check("the heartbeat beats", client.is_alive())

info = client.kernel_info(reply=True, timeout=10)["content"]
check("kernel_info", info["status"] == "ok" and info["language_info"]["name"] == "lua", info)

reply, seen = run(client, "print('hello'); io.stderr:write('wrong\\n'); 6 * 7")
check("execute", reply["status"] == "ok" and reply["execution_count"] == 1, reply)
check("stdout", text(seen) == "hello\n", seen)
check("stderr", text(seen, "stderr") == "wrong\n", seen)
check("execute_result", of(seen, "execute_result")[0]["data"]["text/plain"] == "42", seen)
reply, seen = run(client, "local kept = _ + 1")
reply, seen = run(client, "kept")
check("locals stay", of(seen, "execute_result")[0]["data"]["text/plain"] == "43", seen)
reply, seen = run(client, "for i = 1, 3 do io.write('é', i, ' ') end")
check("UTF-8 and parts of lines", text(seen) == "é1 é2 é3 ", seen)
reply, seen = run(client, "io.write('a\\255b')")
check("bytes that are no UTF-8", text(seen) == "a\ufffdb", seen)
reply, seen = run(client, "io.write(('x'):rep(300000))")
check("long output", len(text(seen)) == 300000)
reply, seen = run(client, "tensor.arange(6):reshape(2, 3)")
data = of(seen, "execute_result")[0]["data"]
check("a tensor", "tensor(" in data["text/plain"] and "<td>5</td>" in data["text/html"], data)
reply, seen = run(client, "{ { a = 1, b = '<' }, { a = 2 } }")
data = of(seen, "execute_result")[0]["data"]
check("records", "<th>a</th><th>b</th>" in data["text/html"] and "&lt;" in data["text/html"], data)
reply, seen = run(client, "display(tensor.ones(2)); print('after'); 5;")
shown = [k for k, _ in seen if k in ("display_data", "stream", "execute_result")]
check("display", shown == ["display_data", "stream"], seen)

reply, seen = run(client, "accelerate.utils.plot.curves({ 1, 3, 2 })")
data = of(seen, "execute_result")[0]["data"]
check("a plot", data["image/svg+xml"].startswith("<svg") and data["image/png"].startswith("iVBORw0KGgo"), seen)
reply, seen = run(client, "for _ in accelerate.utils.tqdm({ 1, 2 }):iter() do end")
check("a progress bar", text(seen, "stderr").count("\r") >= 2 and text(seen, "stderr").endswith("\n"), seen)

reply, seen = run(client, "local function f()\n  error('no')\nend\nf()")
check("an error", reply["status"] == "error" and ":2: no" in reply["evalue"], reply)
check("its traceback", any("f" in line for line in reply["traceback"][1:]), reply)
check("its broadcast", of(seen, "error")[0]["evalue"] == reply["evalue"], seen)
reply, seen = run(client, "x x")
check("a text that cannot be read", reply["status"] == "error" and "'=' expected" in reply["evalue"], reply)
reply, seen = run(client, "", user_expressions={"sum": "1 + 1", "bad": "nothing.at.all"})
check("user_expressions", reply["user_expressions"]["sum"]["data"]["text/plain"] == "2"
      and reply["user_expressions"]["bad"]["status"] == "error", reply)
before = reply["execution_count"]
reply, seen = run(client, "quiet = 1; print('x'); 5", silent=True)
check("silent", reply["status"] == "ok" and not seen[1:-1] or not of(seen, "stream"), seen)
reply, seen = run(client, "1", store_history=False)
check("store_history", reply["execution_count"] == before, reply, before)
reply, seen = run(client, "quiet")
check("counts again", reply["execution_count"] == before + 1, reply)

ids = [client.execute(code) for code in ("error('stop')", "never = 1", "never = 2")]
states = [client.get_shell_msg(timeout=10)["content"]["status"] for _ in ids]
check("stop_on_error", states == ["error", "aborted", "aborted"], states)
time.sleep(0.2)
reply, seen = run(client, "never")
check("aborted cells did not run", not of(seen, "execute_result"), seen)

matches = client.complete("nn.Linea", reply=True, timeout=10)["content"]
check("complete", "Linear" in matches["matches"], matches)
check("complete's place", (matches["cursor_start"], matches["cursor_end"]) == (3, 8), matches)
matches = client.complete("é = nn.Linea", reply=True, timeout=10)["content"]
check("complete after UTF-8", (matches["cursor_start"], matches["cursor_end"]) == (7, 12), matches)
found = client.inspect("nn.Linear(2, 3)", cursor_pos=6, reply=True, timeout=10)["content"]
check("inspect", found["found"] and "in_features" in found["data"]["text/plain"], found)
check("inspect nothing", not client.inspect("no_such_thing", reply=True, timeout=10)["content"]["found"])
for code, state in (("x = 1", "complete"), ("for i = 1, 2 do", "incomplete"), ("x x", "invalid"),
                    ("?nn.Linear", "complete")):
    client.is_complete(code)
    answer = client.get_shell_msg(timeout=10)["content"]["status"]
    check("is_complete", answer == state, code, answer)
items = client.history(hist_access_type="tail", n=2, reply=True, timeout=10)["content"]["history"]
check("history tail", items[-1][2] == "never", items)
items = client.history(hist_access_type="range", session=0, start=1, stop=2, reply=True, timeout=10)
items = items["content"]["history"]
check("history range", [i[1:] for i in items] == [[1, "print('hello'); io.stderr:write('wrong\\n'); 6 * 7"]], items)
items = client.history(hist_access_type="search", pattern="*arange*", n=5, reply=True, timeout=10)["content"]["history"]
check("history search", len(items) == 1, items)
check("comm_info", client.comm_info(reply=True, timeout=10)["content"]["comms"] == {})

for how in ("message", "signal"):
    client.execute("n = 0; print('on'); while true do n = n + 1 end")
    while client.get_iopub_msg(timeout=10)["msg_type"] != "stream":
        pass
    time.sleep(0.3)
    check("alive in a loop", client.is_alive())
    began = time.time()
    if how == "message":
        manager.interrupt_kernel()
    else:
        os.killpg(os.getpgid(manager.provisioner.pid), signal.SIGINT)
    reply = client.get_shell_msg(timeout=10)["content"]
    check("interrupted by a " + how, reply["status"] == "error" and "interrupted" in reply["evalue"], reply)
    print("interrupted by a %s after %.0f ms" % (how, 1e3 * (time.time() - began)))
    reply, seen = run(client, "n > 0")
    check("goes on", of(seen, "execute_result")[0]["data"]["text/plain"] == "true", seen)

manager.restart_kernel(now=False)
client.wait_for_ready(timeout=20)
reply, seen = run(client, "n")
check("a restart forgets", not of(seen, "execute_result") and reply["execution_count"] == 1, reply)
code = "local r = accelerate.notebook_launcher(function() return 7 end, {}, { num_processes = 2 }); r"
reply, seen = run(client, code, timeout=60)
check("ranks in a cell", of(seen, "execute_result")[0]["data"]["text/plain"] == "7", reply, seen)
client.execute("ffi = require 'ffi'; ffi.cdef 'int getpid(void); int kill(int, int);'; ffi.C.kill(ffi.C.getpid(), 11)")
reply = client.get_shell_msg(timeout=10)["content"]
check("a crash is answered", reply["status"] == "error" and "has ended" in reply["evalue"], reply)
time.sleep(0.5)
check("and ends the kernel", not manager.is_alive())
manager.start_kernel()
client.wait_for_ready(timeout=20)
manager.shutdown_kernel()
check("shutdown", not manager.is_alive())
print("%d checks passed; the kernel was ready after %.0f ms" % (checks, 1e3 * started))
