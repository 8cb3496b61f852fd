"""Writes launch_reference.lua: what `accelerate launch` starts for configurations and launch lines of its
documentation: how many processes, and the settings that their environment has.

    python3 spec/generators/gen_launch_reference.py > spec/reference/launch_reference.lua
"""
import os
import sys
import tempfile

os.environ["HF_HOME"] = tempfile.mkdtemp()
import accelerate  # noqa: E402
from accelerate.commands import launch  # noqa: E402
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env  # noqa: E402

BASE = """compute_environment: LOCAL_MACHINE
debug: false
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
num_machines: 1
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
"""
CASES = [
    ("a single process",
     BASE + "distributed_type: 'NO'\nmixed_precision: 'no'\nnum_processes: 1\nuse_cpu: false\n", []),
    ("a single process in fp16",
     BASE + "distributed_type: 'NO'\nmixed_precision: fp16\nnum_processes: 1\nuse_cpu: false\n", []),
    ("several GPUs",
     BASE + "distributed_type: MULTI_GPU\ngpu_ids: all\nmixed_precision: fp16\nnum_processes: 4\nuse_cpu: no\n", []),
    ("chosen GPUs",
     BASE + "distributed_type: MULTI_GPU\ngpu_ids: 0,2\nmixed_precision: bf16\nnum_processes: 2\nuse_cpu: no\n", []),
    ("fewer ranks than the file",
     BASE + "distributed_type: MULTI_GPU\nmixed_precision: fp16\nnum_processes: 4\nuse_cpu: false\n",
     ["--num_processes", "2", "--mixed_precision", "bf16"]),
    ("debug mode", (BASE + "distributed_type: MULTI_GPU\nmixed_precision: 'no'\nnum_processes: 2\n").replace(
        "debug: false", "debug: true"), []),
    ("a compiler of graphs", BASE + "distributed_type: MULTI_GPU\nmixed_precision: 'no'\nnum_processes: 2\n"
     "dynamo_config:\n  dynamo_backend: CUDAGRAPHS\n", []),
    ("processors near the GPU", BASE + "distributed_type: MULTI_GPU\nmixed_precision: 'no'\nnum_processes: 2\n",
     ["--enable_cpu_affinity"]),
    ("an old file", "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nfp16: true\nnum_processes: 2\n"
     "dynamo_backend: 'NO'\nmain_process_ip: null\nmain_process_port: null\nmachine_rank: 0\nnum_machines: 1\n", []),
    ("options alone", None, ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "fp16",
                             "--dynamo_backend", "no"]),
    ("the CPU", None, ["--cpu", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no"]),
    ("threads", None, ["--num_cpu_threads_per_process", "3", "--num_processes", "1", "--num_machines", "1"]),
]
NAMES = ["ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU", "ACCELERATE_DEBUG_MODE", "ACCELERATE_CPU_AFFINITY",
         "ACCELERATE_DYNAMO_BACKEND", "CUDA_VISIBLE_DEVICES"]


def exported(config, options):
    words = list(options)
    if config is not None:
        path = os.path.join(os.environ["HF_HOME"], "c.yaml")
        with open(path, "w") as f:
            f.write(config)
        words = ["--config_file", path] + words
    parser = launch.launch_command_parser()
    sys.argv = ["accelerate-launch"] + words + ["train.py"]
    args, _, _ = launch._validate_launch_command(parser.parse_args(words + ["train.py"]))
    several = args.multi_gpu and not args.cpu
    env = prepare_multi_gpu_env(args) if several else prepare_simple_launcher_cmd_env(args)[1]
    ranks = args.num_processes if several else 1
    return ranks, {n: env[n] for n in NAMES + (["OMP_NUM_THREADS"] if "--num_cpu_threads_per_process" in words else [])
                   if n in env}


def text(value):
    return '"%s"' % value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


print("-- Written by gen_launch_reference.py from accelerate %s: a configuration or false, options, ranks, and what" %
      accelerate.__version__)
print("-- their environment has.")
print("return {")
for name, config, options in CASES:
    ranks, env = exported(config, options)
    print("  { name = %s, ranks = %d," % (text(name), ranks))
    lines = config.splitlines(True) if config else []
    print("    config = %s," % (" ..\n      ".join(text(line) for line in lines) if lines else "false"))
    print("    options = {%s}," % ", ".join(text(word) for word in options))
    print("    env = { %s } }," % ",\n      ".join("%s = %s" % (n, text(v)) for n, v in sorted(env.items())))
print("}")
