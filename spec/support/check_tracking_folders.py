"""Has MLflow, DVC, ClearML, trackio and SwanLab read what examples/by_feature/tracking.lua wrote. ClearML's import
goes to a server of this script's own. Run by hand, where there is Python; the specs check the same files without it.

    pip install mlflow-skinny dvclive clearml trackio[tensorboard] swanlab pandas tensorboard
    python spec/support/check_tracking_folders.py build/accel-run
"""
import base64, glob, json, os, subprocess, sys, tempfile, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

here, host, tools = os.getcwd(), os.path.abspath(sys.argv[1]), os.path.dirname(sys.executable)
folder = tempfile.mkdtemp()
os.environ.update(MLFLOW_ALLOW_FILE_STORE="true", TRACKIO_DIR=folder + "/trackio", CLEARML_CACHE_DIR=folder + "/cache",
    DVC_NO_ANALYTICS="1")
subprocess.run([host, "examples/by_feature/tracking.lua", "--max_steps", "100", "--log_with",
    "tensorboard,mlflow,dvclive,clearml", "--project_dir", folder], check=True)
steps = [1, 21, 41, 61, 81, 100]


def tool(*command):
    return subprocess.run([os.path.join(tools, command[0]), *command[1:]], check=True, capture_output=True, text=True,
        cwd=folder, timeout=120).stdout


# ---- MLflow
import mlflow

mlflow.set_tracking_uri("file://" + folder + "/mlruns")
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name("quarters")
run = client.search_runs([experiment.experiment_id])[0]
losses = client.get_metric_history(run.info.run_id, "loss")
assert [m.step for m in losses] == steps and losses[0].value > losses[-1].value > 0, losses
assert run.info.status == "FINISHED" and run.data.params == {"batch_size": "64", "lr": "0.01"}, run
assert [f.path for f in client.list_artifacts(run.info.run_id)] == [] and client.get_experiment("0") is not None
with mlflow.start_run(run_id=run.info.run_id): mlflow.log_metric("loss", 0.1, step=101)
assert len(client.get_metric_history(run.info.run_id, "loss")) == 7
print("mlflow: run %s, %d losses; MLflow went on with it" % (run.info.run_name, len(losses)))

# ---- DVC, and DVCLive itself
from dvclive import Live

tool("dvc", "init", "--no-scm", "-q")
shown = json.loads(tool("dvc", "metrics", "show", "--json"))[""]["data"]
assert shown["dvclive/metrics.json"]["data"]["step"] == 100, shown
plots = json.loads(tool("dvc", "plots", "show", "--json"))
assert {"dvclive/plots/metrics/loss.tsv", "dvclive/plots/metrics/accuracy.tsv"} <= {
    source for name in plots for source in name.split("::")} or plots, plots
os.chdir(folder)
live = Live("dvclive", resume=True, save_dvc_exp=False)
assert live.step == 101 and live.summary["loss"] == shown["dvclive/metrics.json"]["data"]["loss"], live.summary
print("dvc: metrics %s" % sorted(shown["dvclive/metrics.json"]["data"]))

# ---- ClearML's import, and what it sends
sent, files = [], []
ID = "0" * 32
TASK = {"id": ID, "name": "quarters", "type": "training", "status": "in_progress", "project": ID, "user": "u",
    "company": "c", "script": {}, "execution": {"parameters": {}}, "hyperparams": {}, "configuration": {}, "tags": [],
    "system_tags": [], "runtime": {}}
ANSWERS = {"projects.get_all": {"projects": [{"id": ID, "name": "quarters"}]}, "tasks.create": {"id": ID},
    "projects.get_by_id": {"project": {"id": ID, "name": "quarters"}}, "tasks.get_by_id": {"task": TASK},
    "tasks.edit": {"updated": 1, "fields": {}}, "tasks.started": {"updated": 1, "started": 1},
    "tasks.completed": {"updated": 1}, "events.add_batch": {"added": 1, "errors": 0}}


def part(value): return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


class Server(BaseHTTPRequestHandler):
    def log_message(self, *args): pass

    def do_GET(self): self.do_POST()

    def do_POST(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = self.path.split("/")[-1].split("?")[0]
        answer = ANSWERS.get(name, {})
        if name == "auth.login":
            facts = {"exp": int(time.time()) + 9999, "api_version": "2.30", "server_version": "1.16"}
            answer = {"token": ".".join([part({"alg": "HS256"}), part(facts), part("x")])}
        elif name == "events.add_batch": sent.extend(json.loads(line) for line in data.splitlines())
        elif name == "tasks.edit": files.append(json.loads(data))
        text = json.dumps({"meta": {"id": ID, "result_code": 200, "result_subcode": 0, "result_msg": "OK",
            "endpoint": {"name": name, "requested_version": "2.30", "actual_version": "1.0"}, "error_stack": ""},
            "data": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = "http://127.0.0.1:%d" % server.server_port
os.environ.update(CLEARML_API_HOST=address, CLEARML_WEB_HOST=address, CLEARML_FILES_HOST=address,
    CLEARML_API_ACCESS_KEY="k", CLEARML_API_SECRET_KEY="s")
from clearml import Task

assert Task.import_offline_session(glob.glob(folder + "/clearml/offline/*")[0]) == ID
assert [event["iter"] for event in sent if event["metric"] == "loss"] == steps, sent
assert files[0]["hyperparams"]["General"]["batch_size"]["value"] == "64", files
print("clearml: %d events" % len(sent))

# ---- what log_with names instead of trackio and swanlab: their readers of TensorBoard's files
import trackio
from trackio.sqlite_storage import SQLiteStorage

trackio.import_tf_events(folder + "/quarters", project="quarters")
logs = [log for run in SQLiteStorage.get_runs("quarters") for log in SQLiteStorage.get_logs("quarters", run)]
assert [log["step"] for log in logs if "loss" in log] == steps, logs
print("trackio: %d logs" % len(logs))
# SwanLab's converter logs in before it writes, and takes no histograms, which the example writes where tensorboard is
# the first tracker: what it reads is compared.
subprocess.run([host, "examples/by_feature/tracking.lua", "--max_steps", "100", "--log_with", "jsonl,tensorboard",
    "--project_dir", folder + "/plain"], check=True, capture_output=True, cwd=here)
from swanlab.converter.tfb.utils import get_tf_events_tags_data, get_tf_events_tags_type

events = glob.glob(folder + "/plain/quarters/events*")[0]
read = get_tf_events_tags_data(events, get_tf_events_tags_type(events))
assert [step for step, _, _ in read["loss"]] == steps, read
print("swanlab: %s" % sorted(read))
