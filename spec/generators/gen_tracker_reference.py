"""Writes spec/reference/tracker_reference.lua: what TensorBoard's and wandb's own code makes of the
events that tracking_files_spec writes.

    pip install tensorboard wandb
    python spec/generators/gen_tracker_reference.py > spec/reference/tracker_reference.lua
"""
import io, struct, zlib
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.hparams import plugin_data_pb2, api_pb2
from tensorboard.summary.writer.record_writer import RecordWriter
from wandb.proto import wandb_internal_pb2 as wb


class Sink(io.BytesIO):
    def close(self): pass


def framed(event):
    sink = Sink()
    RecordWriter(sink).write(event.SerializeToString(deterministic=True))
    return sink.getvalue()


def event(step, *values):
    return framed(event_pb2.Event(wall_time=1.5, step=step, summary=summary_pb2.Summary(value=values)))


V = summary_pb2.Summary.Value
text = V(tag="note/text_summary",
         metadata=summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text")),
         tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[b"hello"],
                                       tensor_shape=tensor_shape_pb2.TensorShapeProto(
                                           dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])))
rows = {
    "version": framed(event_pb2.Event(wall_time=1.5, file_version="brain.Event:2")),
    "scalar": event(3, V(tag="loss", simple_value=0.1)),
    "negative_step": event(-3, V(tag="loss", simple_value=float("inf"))),
    "text": event(300, text),
}


def plugin(tag, **data):
    content = plugin_data_pb2.HParamsPluginData(**data).SerializeToString(deterministic=True)
    return event(0, V(tag=tag, metadata=summary_pb2.SummaryMetadata(
        plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="hparams", content=content))))


start = plugin_data_pb2.SessionStartInfo(start_time_secs=1.5)
start.hparams["lr"].number_value = 0.25
start.hparams["name"].string_value = "x"
rows["hparams_experiment"] = plugin("_hparams_/experiment", experiment=api_pb2.Experiment(hparam_infos=[
    api_pb2.HParamInfo(name="lr", type=api_pb2.DATA_TYPE_FLOAT64),
        api_pb2.HParamInfo(name="name", type=api_pb2.DATA_TYPE_STRING)],
    metric_infos=[api_pb2.MetricInfo(name=api_pb2.MetricName(tag="accuracy"))]))
rows["hparams_start"] = plugin("_hparams_/session_start_info", session_start_info=start)
rows["hparams_end"] = plugin("_hparams_/session_end_info", session_end_info=plugin_data_pb2.SessionEndInfo(
    status=api_pb2.STATUS_SUCCESS, end_time_secs=1.5))

# wandb: one Record, and the head of the file (the log's framing is checked by a reader in the spec)
history = wb.HistoryRecord(step=wb.HistoryStep(num=7))
for keys, json in ((["loss"], "0.5"), (["m", "a"], "NaN")):
    history.item.append(wb.HistoryItem(nested_key=keys, value_json=json))
record = wb.Record(num=5, history=history)
record._info.stream_id = "abcd1234"
rows["wandb_history"] = record.SerializeToString(deterministic=True)
rows["wandb_head"] = struct.pack("<4sHB", b":W&B", zlib.crc32(b"Weights & Biases") & 0xFFFF, 0)

print("-- Written by spec/generators/gen_tracker_reference.py from TensorBoard's and wandb's own code; in hexadecimal.")
print("return {")
for name in rows:
    print('  %s = "%s",' % (name, rows[name].hex()))
print("}")
