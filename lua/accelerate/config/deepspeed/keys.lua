--- The keys of DeepSpeed's JSON (its documentation, and the fields that 0.16 to 0.19 read), each
--- with what becomes of it: done, without effect and why, or refused and why.

local M = {}

-- ---- done
-- Key and type. "auto" behind the type: 'auto' is filled from the run.
local DONE = [[
train_batch_size                                     count auto
train_micro_batch_size_per_gpu                       count auto
gradient_accumulation_steps                          count auto
gradient_clipping                                    least0 auto
communication_data_type                              dtype
optimizer.type                                       text
optimizer.params                                     map
scheduler.type                                       text
scheduler.params                                     map
fp16.enabled                                         boolean auto
fp16.loss_scale                                      least0
fp16.initial_scale_power                             size
fp16.loss_scale_window                               count
fp16.hysteresis                                      count
fp16.consecutive_hysteresis                          boolean
fp16.min_loss_scale                                  count
bf16.enabled                                         boolean auto
bf16.check_grad_overflow                             boolean
bfloat16.enabled                                     boolean auto
bfloat16.check_grad_overflow                         boolean
torch_autocast.enabled                               boolean
torch_autocast.dtype                                 dtype
zero_optimization.stage                              stage auto
zero_optimization.offload_optimizer.device           device auto
zero_optimization.offload_optimizer.nvme_path        text auto
zero_optimization.offload_param.device               device auto
zero_optimization.offload_param.nvme_path            text auto
zero_optimization.cpu_offload                        boolean
zero_optimization.cpu_offload_param                  boolean
zero_optimization.leaf_module.classes                list
zero_optimization.leaf_module.names                  list
zero_optimization.leaf_module.name_suffixes          list
]]

-- ---- without effect
-- Key, type, the value that says what happens here anyhow ("-": none does), and why.
local IDLE = [[
managed_gradient_accumulation         boolean true   the Accelerator's sync_gradients says when a window ends
optimizer.legacy_fusion               boolean false  an optimizer has one kernel
zero_allow_untested_optimizer         boolean true   every optimizer can be sharded
zero_force_ds_cpu_optimizer           boolean -      there is one set of CPU kernels
prescale_gradients                    boolean false  gradients are summed in float32, which has the room
gradient_predivide_factor             number 1       gradients are summed in float32, which has the room
seq_parallel_communication_data_type  dtype -        no sequence is cut over ranks
disable_allgather                     boolean false  DeepSpeed does not read it either
dataloader_drop_last                  boolean -      loaders are the script's
vocabulary_size                       size -         DeepSpeed only warns of odd sizes
sequence_parallel_size                count 1        no sequence is cut over ranks
use_data_before_expert_parallelism    boolean false  no experts are cut over ranks
disable_python_gc                     boolean -      there is no Python
steps_per_print                       any -          nothing is printed by itself; print in the loop
log_level                             text -         accelerate.logging has the level
dump_state                            boolean false  accelerator:explain_sharding(model) prints the plan
wall_clock_breakdown                  boolean false  accelerator:profile measures where time goes
memory_breakdown                      boolean false  utils.memory_stats says where memory is
fp16.auto_cast                        boolean -      a prepared model's forward casts its inputs
bf16.immediate_grad_update            boolean -      gradients are added where they stay
bfloat16.immediate_grad_update        boolean -      gradients are added where they stay
zero_optimization.allgather_partitions           boolean true   a unit is gathered by one collective
zero_optimization.allgather_bucket_size          size auto -    a unit is gathered by one collective
zero_optimization.overlap_comm                   boolean auto true gradients are reduced during backward
zero_optimization.reduce_scatter                 boolean true   each rank gets the sum of its own part
zero_optimization.reduce_bucket_size             size auto -    gradients are reduced as units end
zero_optimization.use_multi_rank_bucket_allreduce  boolean -    gradients are reduced as units end
zero_optimization.contiguous_gradients           boolean true   gradients stand in one flat buffer
zero_optimization.grad_hooks                     boolean -      gradients are reduced as units end
zero_optimization.round_robin_gradients          boolean -      the parts of all ranks are equally long
zero_optimization.parameter_alignment            boolean -      each parameter begins at an aligned address
zero_optimization.load_from_fp32_weights         boolean true   the weights at rest are float32
zero_optimization.elastic_checkpoint             boolean -      a checkpoint loads on any number of ranks
zero_optimization.legacy_stage1                  boolean false  there is one stage 1
zero_optimization.compute_grad_norm              boolean -      the norm is computed where it is asked for
zero_optimization.sub_group_size                 size auto -    a step chooses its stages itself
zero_optimization.cpu_offload_use_pin_memory     boolean -      memory that a GPU reads is pinned
zero_optimization.stage3_max_live_parameters     size auto -    two units are whole at a time
zero_optimization.stage3_max_reuse_distance      size auto -    a unit is released after its use
zero_optimization.stage3_prefetch_bucket_size    size auto -    the next unit is gathered ahead
zero_optimization.stage3_param_persistence_threshold  size auto -  small parameters travel with their unit
zero_optimization.stage3_model_persistence_threshold  size auto -  small parameters travel with their unit
zero_optimization.stage3_module_granularity_threshold size -    units are the model's blocks
zero_optimization.stage3_use_all_reduce_for_fetch_params  boolean -  a unit is gathered without copies
zero_optimization.stage3_allgather_sequential    boolean -      a unit is gathered without copies
zero_optimization.stage3_gather_16bit_weights_on_model_save  boolean auto -  save_model writes whole weights
zero_optimization.stage3_gather_fp16_weights_on_model_save   boolean auto -  save_model writes whole weights
zero_optimization.memory_efficient_linear        boolean -      no layer is replaced
zero_optimization.override_module_apply          boolean -      no method is replaced
zero_optimization.pipeline_loading_checkpoint    boolean -      a rank reads its own parts of a file
zero_optimization.log_trace_cache_warnings       boolean false  the order of units needs no cache of traces
zero_optimization.enable_sanity_checks           boolean false  ACCELERATE_DEBUG_MODE checks collectives
zero_optimization.save_muon_momentum_buffer_in_memory  boolean -  offload is the same for all states
zero_optimization.offload_optimizer.pin_memory   boolean auto -  memory that a GPU reads is pinned
zero_optimization.offload_optimizer.buffer_count size -         the offload sizes its buffers itself
zero_optimization.offload_optimizer.pipeline     boolean -      the offload reads ahead and writes behind
zero_optimization.offload_optimizer.pipeline_read   boolean -   the offload reads ahead and writes behind
zero_optimization.offload_optimizer.pipeline_write  boolean -   the offload reads ahead and writes behind
zero_optimization.offload_optimizer.fast_init    boolean -      states are made where they stay
zero_optimization.offload_optimizer.super_offload  boolean -    the optimizer steps where its states are
zero_optimization.offload_optimizer.cpuadam_cores_perc  number -  --num_cpu_threads_per_process says how many
zero_optimization.offload_param.pin_memory       boolean auto -  memory that a GPU reads is pinned
zero_optimization.offload_param.buffer_count     size -         the offload sizes its buffers itself
zero_optimization.offload_param.buffer_size      size auto -    the offload sizes its buffers itself
zero_optimization.offload_param.max_in_cpu       size auto -    the offload sizes its buffers itself
aio.block_size                        size -         the offload chooses how it reads files
aio.queue_depth                       size -         the offload chooses how it reads files
aio.thread_count                      size -         the offload chooses how it reads files
aio.intra_op_parallelism              size -         the offload chooses how it reads files
aio.single_submit                     boolean -      the offload chooses how it reads files
aio.overlap_events                    boolean -      the offload chooses how it reads files
aio.use_gds                           boolean false  files are read into host memory
activation_checkpointing.partition_activations            boolean false  it is for deepspeed.checkpointing
activation_checkpointing.cpu_checkpointing                boolean false  it is for deepspeed.checkpointing
activation_checkpointing.contiguous_memory_optimization   boolean false  it is for deepspeed.checkpointing
activation_checkpointing.number_checkpoints               any -          it is for deepspeed.checkpointing
activation_checkpointing.synchronize_checkpoint_boundary  boolean false  it is for deepspeed.checkpointing
activation_checkpointing.profile                          boolean false  it is for deepspeed.checkpointing
checkpoint.tag_validation             text -         the ranks write into one folder, which has one name
checkpoint.load_universal             boolean -      a checkpoint loads on any number of ranks
checkpoint.use_node_local_storage     boolean false  project_config.save_on_each_node is the setting
checkpoint.parallel_write.pipeline_stage  boolean -  each rank writes its own file
data_types.buffer_dtype               dtype -        buffers keep their own types, as norms need them
data_types.keep_in_fp32_modules       any auto -     the weights and buffers at rest are float32
pipeline                              open -         it is for deepspeed.PipelineModule
timers                                open -         accelerator:profile measures where time goes
]]

-- ---- refused
-- Key, type, the value that requests nothing, and why.
local REFUSED = [[
gradient_allreduce_op                 text mean      gradients are averaged over the ranks; multiply the loss
sparse_gradients                      boolean false  sparse gradients are not reduced over ranks
fp16.fp16_master_weights_and_grads    boolean false  the weights at rest are float32
bf16.bf16_master_weights_and_grads    boolean false  the weights at rest are float32
bf16.bf16_optimizer_states            boolean false  optimizer states are float32
bfloat16.bf16_master_weights_and_grads  boolean false  the weights at rest are float32
bfloat16.bf16_optimizer_states        boolean false  optimizer states are float32
torch_autocast.lower_precision_safe_modules  list -  autocast goes by the op, and not by the module's class
zero_optimization.ignore_unused_parameters   boolean true  parameters without a gradient are left alone
zero_optimization.zero_hpz_partition_size    count 1     a second cut inside a machine is not there
zero_optimization.zero_quantized_weights     boolean false  weights travel as they are
zero_optimization.zero_quantized_nontrainable_weights  boolean false  weights travel as they are
zero_optimization.zero_quantized_gradients   boolean false  gradients travel as they are
zero_optimization.zeropp_loco_param          open -      DeepSpeed has it no more
zero_optimization.mics_shard_size            number -1   DeepSpeed has it no more; FSDP has HYBRID_SHARD
zero_optimization.mics_hierarchical_params_gather  boolean false  DeepSpeed has it no more
zero_optimization.offload_optimizer.ratio    number 1    the states are in one place
zero_optimization.zenflow             open -         the optimizer does not step with a part of the gradients
data_types.grad_accum_dtype           dtype fp32     gradients are added up in float32
data_types.param_dtype                dtype fp32     the weights at rest are float32
]]

-- ---- blocks
-- Blocks that request something where `switch` is true (nil: where they are there). `keys`: those
-- that DeepSpeed has in them; `open`: others may stand there, too.
local BLOCKS = {
  amp = { switch = "enabled", keys = "opt_level", open = true,
    why = "Apex is not there, and DeepSpeed has it no more; use bf16 or fp16" },
  msamp = { switch = "enabled", keys = "opt_level", why = "there is no FP8 backend" },
  tensor_parallel = { switch = "autotp_size", why = "layers are not cut over ranks",
    keys = "preset_model tp_overlap_comm tp partition_config tp_grain_size injection_policy_tuple " ..
      "tp_gather_partition_size tensor_parallel dtype", open = true },
  expert_parallel = { switch = "enabled", why = "experts are not cut over ranks", open = true,
    keys = "autoep_size preset_model moe_layer_pattern router_pattern expert_pattern expert_w1 expert_w2 " ..
      "expert_w3 num_experts_attr top_k_attr has_shared_experts" },
  hybrid_engine = { switch = "enabled", why = "there is one engine, for training and generation alike",
    keys = "max_out_tokens inference_tp_size release_inference_cache pin_parameters " ..
      "tp_gather_partition_size enable_cuda_graph" },
  autotuning = { switch = "enabled", why = "settings are not searched for", open = true,
    keys = "results_dir exps_dir overwrite metric start_profile_step end_profile_step fast " ..
      "max_train_batch_size mp_size num_tuning_micro_batch_sizes tuner_type tuner_early_stopping " ..
      "tuner_num_trials arg_mappings" },
  sparse_attention = { why = "attention is dense, and DeepSpeed has it no more", open = true,
    keys = "mode block different_layout_per_head num_local_blocks num_global_blocks attention " ..
      "horizontal_global_attention num_different_global_patterns num_random_blocks " ..
      "local_window_blocks global_block_indices global_block_end_indices num_sliding_window_blocks" },
  data_efficiency = { switch = "enabled", why = "samples and tokens are chosen by the script's loader",
    keys = "seed data_routing data_sampling" },
  curriculum_learning = { switch = "enabled", why = "the script chooses its samples",
    keys = "curriculum_type min_difficulty max_difficulty schedule_type schedule_config" },
  progressive_layer_drop = { switch = "enabled", why = "layers are not left out", keys = "theta gamma" },
  elasticity = { switch = "enabled",
    why = "the number of ranks is --num_processes, and DeepSpeed has it no more",
    keys = "max_train_batch_size micro_batch_sizes min_gpus max_gpus min_time version " ..
      "ignore_non_elastic_batch_info num_gpus_per_node model_parallel_size prefer_larger_batch" },
  compression_training = { why = "weights are not compressed in training, and DeepSpeed has it no more",
    keys = "layer_reduction weight_quantization activation_quantization sparse_pruning row_pruning " ..
      "head_pruning channel_pruning" },
  quantize_training = { why = "weights are not quantised in training, and DeepSpeed has it no more",
    open = true },
  weight_quantization = { why = "utils.load_and_quantize_model quantises weights", open = true },
  eigenvalue = { switch = "enabled", why = "it is for quantize_training", open = true },
  graph_harvesting = { why = "dynamo_backend = 'cudagraphs' of the Accelerator records steps", open = true },
  compile = { switch = "deepcompile", why = "there is no compiler of graphs", open = true,
    keys = "passes offload_activation offload_activation_pin_memory offload_opt_states free_activation " ..
      "free_activation_threshold double_buffer symmetric_memory debug_log offload_parameters " ..
      "sync_before_reduce sync_after_reduce sync_before_allgather sync_after_allgather " ..
      "keep_int_input_tensors keep_all_input_tensors autoep_non_moe" },
  nebula = { switch = "enabled", why = "checkpoints are files, and DeepSpeed has it no more", open = true },
  datastates_ckpt = { why = "save_state { async = true } writes beside the training", open = true },
  flops_profiler = { switch = "enabled", idle = true, why = "accelerator:profile counts and measures",
    keys = "profile_step module_depth top_modules detailed output_file recompute_fwd_factor" },
  comms_logger = { switch = "enabled", idle = true, why = "accelerator:profile has the collectives",
    keys = "verbose prof_all debug prof_ops" },
  tensorboard = { switch = "enabled", idle = true,
    why = "log_with = 'tensorboard' of the Accelerator writes it",
    keys = "output_path job_name" },
  wandb = { switch = "enabled", idle = true, why = "log_with = 'wandb' of the Accelerator writes it",
    keys = "group team project" },
  comet = { switch = "enabled", idle = true, why = "log_with = 'comet_ml' of the Accelerator writes it",
    keys = "workspace project samples_log_interval experiment_name experiment_key api_key online mode" },
  csv_monitor = { switch = "enabled", idle = true, why = "log_with of the Accelerator chooses the trackers",
    keys = "output_path job_name" },
}

-- ---- the table

---@class accelerate.DeepSpeedKey
---@field use "done"|"idle"|"refused"
---@field kind string the type of its value, a name in KINDS of check.lua
---@field auto boolean whether it may be 'auto'
---@field harmless string? the text of the value that needs no word; nil: none
---@field why string? why it has no effect, or is refused
---@field switch string? of blocks: the key inside that turns it on
---@field keys string[]? of blocks: the keys inside, the switch first
---@field open boolean? of blocks: whether there may be others

local VALUES = { ["true"] = true, ["false"] = false }

local function value_of(word)
  if word == "-" then return nil end
  if VALUES[word] ~= nil then return VALUES[word] end
  return tonumber(word) or word
end

local all = {}

for line in DONE:gmatch "[^\n]+" do
  local key, kind, auto = line:match "^(%S+) +(%S+) ?(%S*)$"
  all[key] = { use = "done", kind = kind, auto = auto == "auto" }
end

for use, text in pairs { idle = IDLE, refused = REFUSED } do
  for line in text:gmatch "[^\n]+" do
    local key, kind, rest = line:match "^(%S+) +(%S+) +(.+)$"
    local auto = rest:match "^auto +(.+)$"
    local harmless, why = (auto or rest):match "^(%S+) +(.+)$"
    all[key] = { use = use, kind = kind, auto = auto ~= nil, harmless = value_of(harmless), why = why }
  end
end

for name, block in pairs(BLOCKS) do
  local words = { block.switch }
  for word in (block.keys or ""):gmatch "%S+" do words[#words + 1] = word end
  all[name] = { use = block.idle and "idle" or "refused", kind = "block", auto = false, why = block.why,
    switch = block.switch, keys = words, open = block.open or not block.keys }
end

-- Maps that have keys of their own here: "zero_optimization.offload_param".
local maps = {}
for key in pairs(all) do
  for at in key:gmatch "()%." do maps[key:sub(1, at - 1)] = true end
end

---@type table<string, accelerate.DeepSpeedKey>
M.all = all
---@type table<string, boolean>
M.maps = maps

return M
