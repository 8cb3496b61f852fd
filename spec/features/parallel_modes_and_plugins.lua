return {
  group = "N", title = "Parallel modes and plugins",
  { "DDP", spec = {
    "accelerate/parallel_spec: are the mean over ranks after a backward pass",
    "accelerate/parallel_spec: start from rank 0's parameters and buffers" } },
  { "FullyShardedDataParallelPlugin: version", spec = {
    "sharded/fsdp_plugin_spec: has FSDP1's defaults",
    "sharded/fsdp_plugin_spec: has FSDP2's defaults",
    "sharded/fsdp_plugin_spec: takes what is not given from FSDP_ variables" } },
  { "FSDP: sharding_strategy / reshard_after_forward", spec = {
    "sharded/fsdp_plugin_spec: reads strategies by name in any case, and by number",
    "sharded/fsdp_plugin_spec: refuses the other version's values",
    "sharded/plan_spec: gives each strategy its homes, copies and parts",
    "sharded/plan_spec: keeps values until backward where FSDP2 does not reshard",
    "sharded/training_spec: gives the bits of replicas, but for the order in which a norm is summed up" } },
  { "FSDP: backward_prefetch, forward_prefetch, limit_all_gathers, use_orig_params, sync_module_states",
    spec = {
    "sharded/fsdp_plugin_spec: clears what FSDP2 has no more, and says so",
    "sharded/fsdp_plugin_spec: says which values have no effect, and why" } },
  { "FSDP: mixed_precision_policy", spec = {
    "sharded/fsdp_plugin_spec: makes a mixed precision policy of a word, of dtypes, or of the " ..
    "Accelerator's mode",
    "sharded/fsdp_plugin_spec: refuses policies that are not whole",
    "sharded/policy_spec: computes in the policy's type, and gives outputs in another",
    "sharded/policy_spec: rounds gradients to the type that they are reduced in" } },
  { "FSDP: auto_wrap_policy", spec = {
    "sharded/plan_spec: are the modules of the named classes, and of classes derived from them",
    "sharded/plan_spec: are the model's own undivided classes when none is named",
    "sharded/plan_spec: are modules with enough parameters outside smaller units in FSDP1",
    "sharded/plan_spec: are what a function chooses, from the leaves up" } },
  { "FSDP: cpu_offload, activation_checkpointing, ignored_modules (list or regex, full match), " ..
    "cpu_ram_efficient_loading, param_init_fn", spec = {
    "sharded/policy_spec: computes the units' activations again in backward, with equal gradients",
    "sharded/plan_spec: leave out the parameters of ignored modules",
    "sharded/fsdp_plugin_spec: sets sync_module_states for efficient loading in FSDP1",
    "sharded/never_whole_spec: are read part by part by from_pretrained, from an index of safetensors files",
    "sharded/never_whole_spec: holds its parts alone when a model is drawn, and when it is read",
    "sharded/fsdp_plugin_spec: refuses by name what is not there" } },
  { "FSDP: state_dict_type", spec = {
    "sharded/fsdp_plugin_spec: changes the form of state dicts at the end of training" } },
  { "FSDP checkpoint files", spec = {
    "sharded_files/states_spec: that Accelerate saved is loaded by its functions, on any number of ranks",
    "sharded_files/states_spec: of one rank is one of several, and a plain one of a sharded run",
    "sharded_files/dcp_spec: that Accelerate saved on two ranks of FSDP2 is read by any number" } },
  { "ParallelismConfig", spec = {
    "sharded/parallelism_spec: says what follows from the sizes",
    "sharded/parallelism_spec: takes sizes from PARALLELISM_CONFIG_ variables",
    "sharded/parallelism_spec: gives each rank its place in the mesh" } },
  { "ParallelismConfig: refused", spec = {
    "sharded/parallelism_spec: refuses what does not go together",
    "sharded/parallelism_spec: refuses by name what is not there yet" } },
  { "tensor parallelism", later = "tensor parallelism is not there yet; leave it at 1",
    spec = "sharded/parallelism_spec: refuses by name what is not there yet" },
  { "MegatronLMPlugin", later = "Megatron-LM parallelism is not there yet; leave the option out",
    spec = "accelerate/accelerator_spec: says which engines are not there yet" },
  { "DeepSpeedPlugin", spec = {
    "deepspeed/plugin_spec: makes a configuration of its arguments, as Accelerate does",
    "deepspeed/plugin_spec: has Accelerate's defaults",
    "deepspeed/plugin_spec: refuses MS-AMP, and arguments of other kinds, by name" } },
  { "DeepSpeed config handling", spec = {
    "deepspeed/accelerator_spec: fills 'auto' from the run",
    "deepspeed/plugin_spec: refuses settings of the accelerate config beside deepspeed_config_file",
    "deepspeed/plugin_spec: names all that contradicts each other in one message, each with its place",
    "deepspeed/accelerator_spec: names all that does not fit in one message, each value with its origin",
    "deepspeed/accelerator_spec: has several plugins by name, of which one is in force" } },
  { "DeepSpeed accumulation", spec = {
    "deepspeed/accelerator_spec: happens at the end of a window, and returns the last norm before it",
    "deepspeed/accelerator_spec: takes the configuration's windows, " ..
    "and says so where the Accelerator has others" } },
  { "GatheredParameters", spec = {
    "deepspeed/ranks_spec: give the whole values, and take one rank's changes for all",
    "deepspeed/ranks_spec: drop changes without a rank, or without writeback" } },
}
