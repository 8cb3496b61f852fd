--- accelerate: train on one process or many with the same script.
---
---   local accelerate = require "accelerate"
---   local accelerator = accelerate.Accelerator{ gradient_accumulation_steps = 2 }
---
--- Every member is loaded at its first use, so that a script pays only for what it takes.
local properties = require "accelerate.utils.properties"

return properties.lazy("accelerate", {
  Accelerator = "accelerate.accelerator:Accelerator",
  PartialState = "accelerate.state:PartialState",
  DistributedType = "accelerate.state:DistributedType",
  DataLoaderConfiguration = "accelerate.config.dataclasses:DataLoaderConfiguration",
  ProjectConfiguration = "accelerate.config.dataclasses:ProjectConfiguration",
  GradientAccumulationPlugin = "accelerate.config.dataclasses:GradientAccumulationPlugin",
  AutocastKwargs = "accelerate.config.dataclasses:AutocastKwargs",
  DistributedDataParallelKwargs = "accelerate.config.dataclasses:DistributedDataParallelKwargs",
  DDPCommunicationHookType = "accelerate.config.kwargs_handlers:DDPCommunicationHookType",
  GradScalerKwargs = "accelerate.config.dataclasses:GradScalerKwargs",
  InitProcessGroupKwargs = "accelerate.config.dataclasses:InitProcessGroupKwargs",
  ProfileKwargs = "accelerate.config.dataclasses:ProfileKwargs",
  LocalSGD = "accelerate.local_sgd:LocalSGD",
  skip_first_batches = "accelerate.data_loader:skip_first_batches",
  init_empty_weights = "accelerate.big_modeling:init_empty_weights",
  init_on_device = "accelerate.big_modeling:init_on_device",
  load_safetensors = "accelerate.files:load_safetensors",
  load_checkpoint_in_model = "accelerate.weights:load_checkpoint_in_model",
  launchers = "accelerate.launchers",
  notebook_launcher = "accelerate.launchers:notebook_launcher",
  debug_launcher = "accelerate.launchers:debug_launcher",
  breakpoint = "accelerate.prompt.debugger:breakpoint",
  on_signal = "accelerate.utils.signals:on_signal",
  check_signal = "accelerate.utils.signals:check_signal",
  prepare_pippy = "accelerate.utils.models:prepare_pippy",
  find_executable_batch_size = "accelerate.utils.memory:find_executable_batch_size",
  synchronize_rng_states = "accelerate.utils.random:synchronize_rng_states",
  is_rich_available = "accelerate.utils.available:is_rich_available",
  __version__ = function() return require("accelerate.core").version end,

  autograd = "accelerate.autograd",
  core = "accelerate.core",
  cuda = "accelerate.cuda",
  data = "accelerate.data",
  data_loader = "accelerate.data_loader",
  distributions = "accelerate.distributions",
  func = "accelerate.func",
  local_sgd = "accelerate.local_sgd",
  logging = "accelerate.logging",
  metrics = "accelerate.metrics",
  models = "accelerate.models",
  nn = "accelerate.nn",
  optim = "accelerate.optim",
  profiler = "accelerate.profiler",
  state = "accelerate.state",
  tensor = "accelerate.tensor",
  tokenizers = "accelerate.tokenizers",
  tracking = "accelerate.tracking",
  utils = "accelerate.utils",
})
