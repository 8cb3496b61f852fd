"""PyTorch's side of distributed checkpoints: writes the folders that the specs read, and has PyTorch and Accelerate
load folders that accel-run wrote, on one, two and three ranks.

    python3 check_sharded_files.py --write spec/sharded_files/from_torch     (needs torch, accelerate and safetensors)
    python3 check_sharded_files.py build/accel-run
"""
import os
import subprocess
import sys
import tempfile
import types

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, StateDictOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor, DTensor, Replicate, Shard


def on_rank(rank, ranks, meeting, fn, args):
    os.environ.update(ACCELERATE_USE_FSDP="true", RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=ranks)
    fn(*args)
    dist.barrier()
    dist.destroy_process_group()


def run(ranks, fn, *args):
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (ranks, folder + "/meeting", fn, args), ranks)


def accelerate_side():
    """What Accelerate's functions need of a plugin and an Accelerator: it takes FSDP on GPUs only."""
    from accelerate import FullyShardedDataParallelPlugin, PartialState

    PartialState(cpu=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT",
                                            cpu_ram_efficient_loading=False)
    accelerator = types.SimpleNamespace(process_index=dist.get_rank(), num_processes=dist.get_world_size(),
                                        is_fsdp2=True, is_main_process=dist.get_rank() == 0,
                                        wait_for_everyone=dist.barrier)
    return plugin, accelerator


def model_and_optimizer(scale):
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_((torch.arange(p.numel()) / 8 + i).reshape(p.shape) * scale)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.arange(20.0).reshape(4, 5) / 10).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def whole(model, optimizer):
    """All tensors by the names that the checkpoint has."""
    how = StateDictOptions(full_state_dict=True)
    found = {"model." + k: v for k, v in get_model_state_dict(model, options=how).items()}
    for name, state in get_optimizer_state_dict(model, optimizer, options=how)["state"].items():
        found.update({f"optimizer.state.{name}.{k}": v for k, v in state.items()})
    return {k: v.contiguous() for k, v in found.items()}


def write_fsdp(folder):
    from accelerate.utils import save_fsdp_model, save_fsdp_optimizer

    model, optimizer = model_and_optimizer(1)
    plugin, accelerator = accelerate_side()
    os.makedirs(folder, exist_ok=True)
    save_fsdp_model(plugin, accelerator, model, folder)
    save_fsdp_optimizer(plugin, accelerator, optimizer, model, folder)
    values = whole(model, optimizer)
    if dist.get_rank() == 0:
        save_file(values, folder + "/expected.safetensors")


def write_grid(folder):
    mesh = init_device_mesh("cpu", (2, 2))
    full = torch.arange(35.0).reshape(5, 7)
    cut = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
    columns = distribute_tensor(full.half(), mesh, [Replicate(), Shard(1)])
    deep = distribute_tensor(torch.arange(24).reshape(2, 3, 4), mesh, [Shard(2), Shard(1)])
    dcp.save({"cut": cut, "columns": columns, "deep": deep, "scalar": torch.tensor(7.5), "empty": torch.zeros(0, 3),
              "turned": torch.arange(6.0).reshape(2, 3).t(), "note": {"text": "as it is", "list": [1, 2, {"x": 3}]},
              "steps": 12, "none": None}, checkpoint_id=folder)


def write(folder):
    run(2, write_fsdp, folder)
    run(4, write_grid, folder + "/grid")


# ---- what accel-run wrote

WRITE = """
local core, dcp = require "accelerate.core", require "accelerate.checkpoint.dcp"
local intervals, files = require "accelerate.checkpoint.intervals", require "accelerate.files"
local reader = intervals.open(arg[1] .. "/expected.safetensors")
local ranks = tonumber(arg[3])
local function part(prefix, folder, objects)
  for rank = 0, ranks - 1 do
    local values = {}
    for _, name in ipairs(reader:names()) do
      if name:sub(1, #prefix) == prefix then
        local shape, cut, n = reader:shape(name), {}, reader:read(name):numel()
        for r = 0, ranks - 1 do
          local from, to = math.floor(n * r / ranks), math.floor(n * (r + 1) / ranks)
          if to > from then cut[r] = { from = from, n = to - from } end
        end
        local path, state, key = nil, name:match "^optimizer%.state%.(.+)%.([^.]+)$"
        if state then path = { "optimizer", "state", state, key } end
        values[#values + 1] = { name = name, path = path, dtype = reader:dtype(name), shape = shape, cut = cut,
          tensor = cut[rank] and reader:read(name, cut[rank].from, cut[rank].n) }
      end
    end
    for _, object in ipairs(objects) do values[#values + 1] = object end
    os.execute("mkdir -p " .. folder)
    dcp.write(folder, rank, ranks, values)
  end
end
part("model.", arg[2] .. "/pytorch_model_fsdp_0", {})
local objects = {}
local old = intervals.open(arg[1] .. "/optimizer_0")
for _, name in ipairs(old:object_names()) do
  objects[#objects + 1] = { name = name, path = old:path_of(name), value = old:object(name) }
end
part("optimizer.", arg[2] .. "/optimizer_0", objects)
"""

# A training run of two ranks, saved by save_state; and what PyTorch should find, from one rank's whole model.
TRAIN = """
local accelerate, core = require "accelerate", require "accelerate.core"
local nn, optim, files = require "accelerate.nn", require "accelerate.optim", require "accelerate.files"
local plugin = accelerate.FullyShardedDataParallelPlugin { fsdp_version = 2 }
local accelerator = accelerate.Accelerator { cpu = true, fsdp_plugin = plugin }
accelerate.utils.set_seed(1)
local model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
model, optimizer = accelerator:prepare(model, optimizer)
local x = core.arange(20):to("float32"):view(4, 5):div(10)
for _ = 1, 3 do
  accelerator:backward(model(x):pow(2):mean())
  optimizer:step()
  optimizer:zero_grad()
end
accelerator:save_state(arg[1])
plugin.state_dict_type = "FULL_STATE_DICT"
accelerate.utils.save_fsdp_optimizer(plugin, accelerator, optimizer, model, arg[1] .. "_full")
local dict = accelerator:get_state_dict(model)
if accelerator.is_main_process then
  local list = {}
  for name, t in pairs(dict) do list[#list + 1] = { "model." .. name, t } end
  for name, state in pairs(files.load(arg[1] .. "_full/optimizer.bin").state) do
    for key, t in pairs(state) do list[#list + 1] = { ("optimizer.state.%s.%s"):format(name, key), t } end
  end
  core.safetensors_save(arg[1] .. ".safetensors", list, {})
end
"""


def load_ours(folder, expected):
    from accelerate.utils import load_fsdp_model, load_fsdp_optimizer

    model, optimizer = model_and_optimizer(3)
    plugin, accelerator = accelerate_side()
    load_fsdp_model(plugin, accelerator, model, folder)
    load_fsdp_optimizer(plugin, accelerator, optimizer, model, folder)
    found, wanted = whole(model, optimizer), load_file(expected)
    for name, t in wanted.items() if dist.get_rank() == 0 else ():
        assert torch.equal(found[name], t), name
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    by_columns = distribute_tensor(torch.zeros(3, 5), mesh, [Shard(1)])
    dcp.load({"model": {"0.weight": by_columns}}, checkpoint_id=folder + "/pytorch_model_fsdp_0")
    assert torch.equal(by_columns.full_tensor(), wanted["model.0.weight"])


def check(host):
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        with open(f"{folder}/write.lua", "w") as f:
            f.write(WRITE)
        for writers, readers in (1, 2), (2, 1), (3, 2), (7, 3):
            ours = f"{folder}/ours{writers}"
            subprocess.run([host, f"{folder}/write.lua", folder, ours, str(writers)], check=True)
            run(readers, load_ours, ours, folder + "/expected.safetensors")
            print(f"written by {writers} ranks of accel-run, loaded by Accelerate on {readers}: equal", flush=True)
        with open(f"{folder}/train.lua", "w") as f:
            f.write(TRAIN)
        subprocess.run([host, "--num_processes", "2", "--cpu", f"{folder}/train.lua", f"{folder}/run"], check=True)
        for readers in 1, 2, 3:
            run(readers, load_ours, f"{folder}/run", f"{folder}/run.safetensors")
            print(f"save_state of 2 ranks of accel-run, loaded by Accelerate on {readers}: equal", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write(sys.argv[2])
    else:
        check(os.path.abspath(sys.argv[1]))
