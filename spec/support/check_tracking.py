"""Has the tools that trackers write for read what examples/by_feature/tracking.lua wrote: TensorBoard, and
`wandb sync` and `comet upload` (both into a server of this script's own).  Run by hand, where there
is Python; the specs check the same files byte by byte without it.

    pip install tensorboard wandb comet_ml jsonschema && python spec/support/check_tracking.py build/accel-run
"""
import glob, gzip, json, os, subprocess, sys, tempfile, threading, zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

host = os.path.abspath(sys.argv[1])
folder = tempfile.mkdtemp()
subprocess.run([host, "examples/by_feature/tracking.lua", "--max_steps", "100", "--log_with",
    "tensorboard,wandb,comet_ml", "--project_dir", folder], check=True)

# ---- TensorBoard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

run = EventAccumulator(folder + "/quarters", size_guidance={"scalars": 0})
run.Reload()
assert run.Tags()["scalars"] == ["accuracy", "loss"], run.Tags()
steps = [e.step for e in run.Scalars("loss")]
assert steps == [1, 21, 41, 61, 81, 100], steps
assert run.Scalars("loss")[0].value > run.Scalars("loss")[-1].value > 0
weights = run.Histograms("0.weight")[0].histogram_value
assert weights.num == 64 == sum(weights.bucket), weights
settings = EventAccumulator(os.path.dirname(glob.glob(folder + "/quarters/*/hparams.yml")[0]))
settings.Reload()
start = plugin_data_pb2.HParamsPluginData.FromString(
    settings.summary_metadata["_hparams_/session_start_info"].plugin_data.content)
assert start.session_start_info.hparams["batch_size"].number_value == 64
print("tensorboard: %d scalars, histograms, hparams" % len(steps))

# ---- wandb sync, and what it sends
rows, put, comet = [], [], []
COMET = {"experimentKey": "x", "runId": "1", "status": "success", "code": 200, "project_id": "1",
    "focusUrl": "http://127.0.0.1/",
         "is_alive_beat_duration_millis": 10000, "gpu_monitor_interval_millis": 60000,
             "cpu_monitor_interval_millis": 60000,
         "parameter_update_interval_millis": 60000, "s3DirectAccessEnabled": False, "maxUploadFileSize": 10**9,
             "version": "3.0.0"}


class Server(BaseHTTPRequestHandler):
    def log_message(self, *args): pass

    def answer(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def body(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def do_GET(self): self.answer({})

    def do_PUT(self):
        put.append((self.path, self.body()))
        self.answer({})

    def do_POST(self):
        data = self.body()
        if self.path.endswith("file_stream"):
            rows.extend(json.loads(line) for line in json.loads(data).get("files", {}).get("wandb-history.jsonl",
                {}).get("content", []))
            return self.answer({})
        if "graphql" not in self.path:
            comet.append((self.path, data))
            return self.answer(COMET)
        query = json.loads(data)
        bucket = {"id": "1", "name": query.get("variables", {}).get("name"), "displayName": "one", "config": "{}",
            "historyLineCount": 0,
                  "project": {"id": "1", "name": "quarters", "entity": {"id": "1", "name": "me"}}}
        if "upsertBucket" in query["query"]: return self.answer(
            {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}})
        if "createRunFiles" in query["query"]:
            return self.answer({"data": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": [
                {"name": name, "uploadUrl": "http://127.0.0.1:%d/%s" % (server.server_port, name)}
                    for name in query["variables"]["files"]]}}})
        self.answer({"data": {}})


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
# Both tools write logs into the folder that they run in.
subprocess.run([os.path.join(os.path.dirname(sys.executable), "wandb"), "sync", "--yes"] + glob.glob(
    folder + "/wandb/*"),
               check=True, timeout=60, cwd=folder, stdin=subprocess.DEVNULL,
                   env=dict(os.environ, WANDB_BASE_URL="http://127.0.0.1:%d" % server.server_port,
                   WANDB_API_KEY="0" * 40))
assert [row["_step"] for row in rows] == steps and all("loss" in row for row in rows), rows
files = dict(put)
assert b"batch_size" in files["/config.yaml"] and json.loads(files["/wandb-summary.json"])["_step"] == 100
print("wandb sync: %d rows, %d files" % (len(rows), len(put)))

# ---- comet_ml
os.environ["COMET_OFFLINE"] = "1"
import comet_ml, jsonschema
from comet_ml import offline

schemas = os.path.join(os.path.dirname(comet_ml.__file__), "schemas")
schema_of = {"metric_msg": "offline-metric-msg", "parameter_msg": "offline-parameter-msg",
    "log_other": "offline-log-other-msg",
             "file_upload": "offline-file-upload-msg"}


def check(value, name):
    with open(os.path.join(schemas, name + ".schema.json")) as f: jsonschema.validate(value, json.load(f))


archive = glob.glob(folder + "/comet/*.zip")[0]
assert zipfile.ZipFile(archive).testzip() is None
inside = offline.unzip_offline_archive(archive)
check(json.load(open(inside + "/experiment.json")), "offline-experiment")
messages = [json.loads(line) for line in open(inside + "/messages.json")]
for message in messages: check(message["payload"], schema_of[message["type"]])
assert [m["payload"]["metric"]["step"] for m in messages if m["type"] == "metric_msg" and m["payload"]["metric"][
    "metricName"] == "loss"] == steps
subprocess.run([os.path.join(os.path.dirname(sys.executable), "comet"), "upload", archive], check=True, timeout=60,
    cwd=folder,
               env=dict(os.environ, COMET_URL_OVERRIDE="http://127.0.0.1:%d/clientlib/" % server.server_port,
                   COMET_API_KEY="0" * 25, COMET_OFFLINE=""))
sent = b"".join(data for path, data in comet)
assert b"batch_size" in sent and b"accuracy" in sent, [path for path, data in comet]
print("comet upload: %d messages, %d requests" % (len(messages), len(comet)))
