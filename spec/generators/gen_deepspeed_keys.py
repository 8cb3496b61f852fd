"""Writes deepspeed_keys.txt: the keys of DeepSpeed's JSON, from its documentation and its package.

    pip download --no-deps --no-binary :all: deepspeed==0.19.8 && tar xf deepspeed-0.19.8.tar.gz
    curl -O https://raw.githubusercontent.com/deepspeedai/DeepSpeed/master/docs/_pages/config-json.md
    python3 spec/generators/gen_deepspeed_keys.py config-json.md deepspeed-0.19.8 > spec/reference/deepspeed_keys.txt

A key is a path: the page's examples nest them, and the classes of the package have the fields of a
block.
"""
import pathlib
import re
import sys

page = pathlib.Path(sys.argv[1]).read_text()
root = pathlib.Path(sys.argv[2])

# Blocks whose examples have names of the user's in them.
OPEN = {"params", "partition_config", "different_groups", "arg_mappings", "curriculum_metrics", "schedule_config",
        "data_routing", "data_sampling", "layer_reduction", "weight_quantization", "activation_quantization",
        "sparse_pruning", "row_pruning", "head_pruning", "channel_pruning", "layer_specs"}

keys = set()


def walk(example):
    path, name = [], None
    for token in re.findall(r'"(\w+)"\s*:|([{}])', example):
        if token[0]:
            name = token[0]
            if not OPEN & set(path):
                keys.add(".".join([p for p in path if p] + [name]))
        elif token[1] == "{":
            path.append(name)
        elif path:
            path.pop()


for example in re.findall(r"```json\n(.*?)```", page, re.S):
    walk(example)

FIELD = re.compile(r'^    (\w+): (?:Optional\[)?\w[^=\n]*=(.*?)(?=^    \w+:|^    """|^    @|\Z)', re.M | re.S)


def fields(file, name, prefix):
    text = (root / "deepspeed" / file).read_text()
    body = re.search(r"^class %s\(.*?\):\n(.*?)(?=^class |\Z)" % name, text, re.M | re.S).group(1)
    for field, rest in FIELD.findall(body):
        alias = re.search(r'alias="(\w+)"', rest)
        keys.add(prefix + (alias.group(1) if alias else field))


fields("runtime/zero/config.py", "DeepSpeedZeroConfig", "zero_optimization.")
fields("runtime/zero/offload_config.py", "DeepSpeedZeroOffloadParamConfig", "zero_optimization.offload_param.")
fields("runtime/zero/offload_config.py", "DeepSpeedZeroOffloadOptimizerConfig", "zero_optimization.offload_optimizer.")
fields("runtime/zero/leaf_module_config.py", "DeepSpeedZeroLeafModuleConfig", "zero_optimization.leaf_module.")
fields("runtime/precision_config.py", "DeepSpeedFP16Config", "fp16.")
fields("runtime/precision_config.py", "DeepSpeedBF16Config", "bf16.")

# What the package reads at the top.
constants = (root / "deepspeed/runtime/constants.py").read_text()
names = dict(re.findall(r'^([A-Z0-9_]+) = "(\w+)"', constants, re.M))
config = (root / "deepspeed/runtime/config.py").read_text()
for constant in re.findall(r"get_scalar_param\(param_dict, ([A-Z0-9_]+)", config):
    if constant in names:
        keys.add(names[constant])
for block, inside in [("CHECKPOINT", ["CHECKPOINT_TAG_VALIDATION", "LOAD_UNIVERSAL_CHECKPOINT",
                                      "USE_NODE_LOCAL_STORAGE_CHECKPOINT"]),
                      ("DATA_TYPES", ["GRAD_ACCUM_DTYPE", "PARAM_DTYPE", "BUFFER_DTYPE",
                                      "KEEP_IN_FP32_MODULES"]),
                      ("TORCH_AUTOCAST", ["TORCH_AUTOCAST_ENABLED", "TORCH_AUTOCAST_DTYPE",
                                          "TORCH_AUTOCAST_LOWER_PRECISION_SAFE_MODULES"])]:
    for constant in inside:
        keys.add(names[block] + "." + names[constant])
keys.update(re.findall(r'^    "(\w+)":$', re.search(r"_REMOVED_TOP_LEVEL_CONFIG_KEYS = {(.*?)^}", config, re.M | re.S)
                       .group(1), re.M))
keys.update("zero_optimization." + key for key in re.findall(
    r'^    "(\w+)":$', re.search(r"_REMOVED_ZERO_CONFIG_KEYS = {(.*?)^}", config, re.M | re.S).group(1), re.M))

for key in sorted({"zero_optimization." + key if key.startswith("offload_") else key for key in keys}):
    print(key)
