--- Helpers; each is loaded at its first use.
local properties = require "accelerate.utils.properties"

local operations, random = "accelerate.utils.operations:", "accelerate.utils.random:"
local state, dataclasses, checkpoint = "accelerate.state:", "accelerate.dataclasses:", "accelerate.checkpoint:"

return properties.lazy("accelerate.utils", {
  tqdm = "accelerate.utils.tqdm",
  options = "accelerate.utils.options",
  class = "accelerate.utils.class",
  scope = "accelerate.utils.scope",
  json = "accelerate.utils.json",
  operations = "accelerate.utils.operations",
  random = "accelerate.utils.random",
  environment = "accelerate.utils.environment",

  gather = operations .. "gather",
  gather_object = operations .. "gather_object",
  reduce = operations .. "reduce",
  broadcast = operations .. "broadcast",
  broadcast_object_list = operations .. "broadcast_object_list",
  pad_across_processes = operations .. "pad_across_processes",
  send_to_device = operations .. "send_to_device",
  recursively_apply = operations .. "recursively_apply",
  find_batch_size = operations .. "find_batch_size",
  concatenate = operations .. "concatenate",
  slice_tensors = operations .. "slice_tensors",
  listify = operations .. "listify",

  set_seed = random .. "set_seed",
  synchronize_rng_state = random .. "synchronize_rng_state",
  synchronize_rng_states = random .. "synchronize_rng_states",

  DistributedType = state .. "DistributedType",
  DataLoaderConfiguration = dataclasses .. "DataLoaderConfiguration",
  ProjectConfiguration = dataclasses .. "ProjectConfiguration",
  GradientAccumulationPlugin = dataclasses .. "GradientAccumulationPlugin",
  AutocastKwargs = dataclasses .. "AutocastKwargs",
  DistributedDataParallelKwargs = dataclasses .. "DistributedDataParallelKwargs",
  DDPCommunicationHookType = dataclasses .. "DDPCommunicationHookType",
  GradScalerKwargs = dataclasses .. "GradScalerKwargs",
  InitProcessGroupKwargs = dataclasses .. "InitProcessGroupKwargs",
  KwargsHandler = dataclasses .. "KwargsHandler",
  ProfileKwargs = dataclasses .. "ProfileKwargs",
  AORecipeKwargs = dataclasses .. "AORecipeKwargs",
  TERecipeKwargs = dataclasses .. "TERecipeKwargs",
  MSAMPRecipeKwargs = dataclasses .. "MSAMPRecipeKwargs",
  FP8RecipeKwargs = dataclasses .. "FP8RecipeKwargs",
  PrecisionType = dataclasses .. "PrecisionType",
  RNGType = dataclasses .. "RNGType",
  DynamoBackend = dataclasses .. "DynamoBackend",

  convert_to_fp32 = "accelerate.mixed_precision:convert_to_fp32",
  convert_outputs_to_fp32 = "accelerate.mixed_precision:convert_outputs_to_fp32",

  load_checkpoint_in_model = checkpoint .. "load_checkpoint_in_model",
  convert_file_size_to_int = checkpoint .. "convert_file_size_to_int",
  str_to_bool = "accelerate.utils.environment:str_to_bool",

  check_os_kernel = "accelerate.utils.system:check_os_kernel",
  set_numa_affinity = "accelerate.utils.system:set_numa_affinity",
  override_numa_affinity = "accelerate.utils.system:override_numa_affinity",

  --- Bytes and blocks in use, the most there ever were, the limit, by allocation size and script line.
  memory_stats = function() return require("accelerate.core").memory_stats end,
  set_memory_limit = function() return require("accelerate.core").set_memory_limit end,
  reset_peak_memory_stats = function() return require("accelerate.core").reset_peak_memory_stats end,
  empty_cache = function() return require("accelerate.core").empty_cache end,
  wait_for_everyone = function()
    return function() return require("accelerate.state").PartialState():wait_for_everyone() end
  end,
}, {
  capture = "steps are captured once there is a GPU backend",
  LocalSGD = "local SGD comes later",
  find_executable_batch_size = "it comes later",
})
