--- Helpers; each is loaded at its first use.
local properties = require "accelerate.utils.properties"

local random = "accelerate.utils.random:"
local state, dataclasses, checkpoint =
  "accelerate.state:", "accelerate.config.dataclasses:", "accelerate.weights:"

local members = {
  tqdm = "accelerate.utils.tqdm",
  plot = "accelerate.plot",
  show = "accelerate.utils.show:show",
  pformat = "accelerate.utils.show:pformat",
  LoggerType = "accelerate.tracking:LoggerType",
  options = "accelerate.utils.options",
  class = "accelerate.utils.class",
  constants = "accelerate.utils.constants",
  scope = "accelerate.utils.scope",
  json = "accelerate.utils.json",
  operations = "accelerate.collectives.operations",
  random = "accelerate.utils.random",
  environment = "accelerate.utils.environment",

  set_seed = random .. "set_seed",
  synchronize_rng_state = random .. "synchronize_rng_state",
  synchronize_rng_states = random .. "synchronize_rng_states",

  DistributedType = state .. "DistributedType",
  DataLoaderConfiguration = dataclasses .. "DataLoaderConfiguration",
  ProjectConfiguration = dataclasses .. "ProjectConfiguration",
  GradientAccumulationPlugin = dataclasses .. "GradientAccumulationPlugin",
  AutocastKwargs = dataclasses .. "AutocastKwargs",
  LocalSGD = "accelerate.local_sgd:LocalSGD",
  deepcopy = "accelerate.utils.copy",
  GradScaler = "accelerate.precision.grad_scaler:GradScaler",
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
  FP8BackendType = dataclasses .. "FP8BackendType",
  RNGType = random .. "RNGType",
  DynamoBackend = dataclasses .. "DynamoBackend",
  capture = "accelerate.capture.step:capture",

  convert_to_fp32 = "accelerate.precision.mixed_precision:convert_to_fp32",
  convert_outputs_to_fp32 = "accelerate.precision.mixed_precision:convert_outputs_to_fp32",

  load_checkpoint_in_model = "accelerate.big_modeling.loading:load_checkpoint_in_model",
  convert_file_size_to_int = checkpoint .. "convert_file_size_to_int",

  check_os_kernel = "accelerate.machine.system:check_os_kernel",
  set_numa_affinity = "accelerate.machine.system:set_numa_affinity",
  override_numa_affinity = "accelerate.machine.system:override_numa_affinity",

  --- Returns bytes and blocks in use, their peak and the limit, by allocation size and script line.
  memory_stats = function() return require("accelerate.core").memory_stats end,
  --- Limits the bytes of this rank's tensors: set_memory_limit(bytes). An allocation beyond the
  --- limit is an error.
  set_memory_limit = function() return require("accelerate.core").set_memory_limit end,
  --- Resets the peak of memory_stats.
  reset_peak_memory_stats = function() return require("accelerate.core").reset_peak_memory_stats end,
  --- Returns blocks that no tensor uses to the system.
  empty_cache = function() return require("accelerate.core").empty_cache end,
  --- Returns the seconds since 1970 on the wall clock, with fractions.
  time = function() return require("accelerate.core")._wall end,
  wait_for_everyone = function()
    return function() return require("accelerate.state").PartialState():wait_for_everyone() end
  end,
}

--- Many members of one module.
local function add(module, names)
  for name in names:gmatch("%S+") do members[name] = module .. ":" .. name end
end

add("accelerate.collectives.operations", [[gather gather_object reduce broadcast
  broadcast_object_list copy_tensor_to_devices pad_across_processes]])
add("accelerate.utils.nested", [[send_to_device recursively_apply honor_type is_namedtuple find_device
  find_batch_size ignorant_find_batch_size get_data_structure get_shape initialize_tensors
  TensorInformation is_tensor_information is_torch_tensor concatenate slice_tensors pad_input_tensors
  listify]])
add("accelerate.utils.memory",
  "find_executable_batch_size should_reduce_batch_size release_memory clear_device_cache")
add("accelerate.utils.environment", [[str_to_bool get_int_from_env parse_flag_from_env
  parse_choice_from_env convert_dict_to_env_variables patch_environment clear_environment
  purge_accelerate_environment]])
add("accelerate.utils.objects",
  "get_pretty_name merge_dicts convert_bytes hasattr isinstance recursive_getattr")
add("accelerate.utils.offload", [[offload_state_dict offload_weight load_offloaded_weight
  save_offload_index OffloadedWeightsLoader PrefixedDataset extract_submodules_state_dict]])
add("accelerate.big_modeling.sizes", [[compute_module_sizes calculate_maximum_sizes dtype_byte_size
  get_max_layer_size]])
add("accelerate.hooks.tensors", "named_module_tensors set_module_tensor_to_device")
add("accelerate.hooks.align", [[has_offloaded_params align_module_device get_state_dict_offloaded_model
  get_state_dict_from_offload]])
add("accelerate.big_modeling.ties", [[find_tied_parameters retie_parameters
  check_tied_parameters_in_config check_tied_parameters_on_same_device]])
add("accelerate.big_modeling.limits", "get_max_memory get_balanced_memory")
add("accelerate.big_modeling.device_map", "check_device_map clean_device_map")
add("accelerate.big_modeling.allocation",
  "infer_auto_device_map compute_module_total_buffer_size fallback_allocate")
add("accelerate.config.fsdp", [[FullyShardedDataParallelPlugin enable_fsdp_ram_efficient_loading
  disable_fsdp_ram_efficient_loading]])
add("accelerate.checkpoint.fsdp_files", [[save_fsdp_model load_fsdp_model save_fsdp_optimizer
  load_fsdp_optimizer merge_fsdp_weights]])
add("accelerate.config.parallelism", "ParallelismConfig")
add("accelerate.config.deepspeed.plugin", "DeepSpeedPlugin get_active_deepspeed_plugin")
add("accelerate.config.deepspeed.hf_config", "HfDeepSpeedConfig")
add("accelerate.config.deepspeed.dummies", "DummyOptim DummyScheduler")
add("accelerate.big_modeling.dispatch", [[cpu_offload cpu_offload_with_hook disk_offload dispatch_model
  load_checkpoint_and_dispatch]])
add("accelerate.big_modeling.plan", "plan_device_map")
add("accelerate.data.grid", "make_grid")
add("accelerate.quantisation", "BnbQuantizationConfig load_and_quantize_model has_4bit_bnb_layers")
add("accelerate.precision.float8_models", [[convert_model convert_model_to_fp8_ao apply_fp8_autowrap
  has_ao_layers has_transformer_engine_layers filter_linear_layers find_first_last_linear_layers
  filter_first_and_last_linear_layers]])
add("accelerate.files", "save load safe_open load_safetensors")
add("accelerate.utils.models", [[extract_model_from_parallel get_module_children_bottom_up
  clean_state_dict_for_safetensors model_has_dtensor is_peft_model install_xla]])
add("accelerate.parallel.sharded.scopes", "GatheredParameters summon_full_params")
add("accelerate.machine", [[is_port_in_use get_free_port get_gpu_info get_driver_version
  check_cuda_p2p_ib_support check_cuda_fp8_capability get_current_device_type write_basic_config]])
add("accelerate.utils.constants", [[MODEL_NAME WEIGHTS_NAME WEIGHTS_PATTERN_NAME WEIGHTS_INDEX_NAME
  SAFE_MODEL_NAME SAFE_WEIGHTS_NAME SAFE_WEIGHTS_PATTERN_NAME SAFE_WEIGHTS_INDEX_NAME FSDP_MODEL_NAME
  OPTIMIZER_NAME SCHEDULER_NAME SAMPLER_NAME SCALER_NAME RNG_STATE_NAME PROFILE_PATTERN_NAME]])
add("accelerate.utils.available", "compare_versions is_torch_version is_habana_gaudi1")
for name in ([[cuda fp16 bf16 fp8 torch_distributed weights_only tqdm lomo schedulefree torchdata
  torchdata_stateful_dataloader tensorboard wandb comet_ml aim mlflow clearml dvclive swanlab trackio
  xccl ccl import_timer pynvml amdsmi rocm pytest msamp transformer_engine transformer_engine_mxfp8
  torch_xla torchao deepspeed pippy 4bit_bnb 8bit_bnb bnb bitsandbytes_multi_backend torchvision
  megatron_lm transformers datasets peft timm triton boto3 rich sagemaker pandas matplotlib numpy mps
  mlu musa npu sdaa hpu xpu neuron ipex]]):gmatch("%S+") do
  name = "is_" .. name .. "_available"
  members[name] = "accelerate.utils.available:" .. name
end

return properties.lazy("accelerate.utils", members)
