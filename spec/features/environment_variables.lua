local NO_ENGINE = "accelerate/accelerator_spec: says which engines are not there yet"

return {
  group = "AB", title = "Environment variables",
  { "rank and rendezvous", spec = { "dist/machines_spec: number their ranks through, and each from 0",
    "dist/joins_spec: share memory as forked ranks do",
    "dist/joins_spec: is refused when what it says does not fit, with what was said" } },
  { "ACCELERATE_MIXED_PRECISION, ACCELERATE_GRADIENT_ACCUMULATION_STEPS, ACCELERATE_USE_CPU, " ..
    "ACCELERATE_TORCH_DEVICE, ACCELERATE_DEBUG_MODE, ACCELERATE_LOG_LEVEL, ACCELERATE_CPU_AFFINITY", spec = {
    "accelerate/accelerator_spec: lets the environment replace gradient_accumulation_steps, but not " ..
    "mixed_precision",
    "accelerate/accelerator_spec: takes no device that is not there, nor a rank that another program started",
    "accelerate/logging_spec: takes its level from the argument, from ACCELERATE_LOG_LEVEL, or is at " ..
    "WARNING; and sets the root's", "cli/config_spec: reach the ranks" } },
  { "ACCELERATE_DYNAMO_{BACKEND, MODE, USE_FULLGRAPH, USE_DYNAMIC, USE_REGIONAL_COMPILATION}",
    spec = { "cli/config_spec: reach the ranks",
      "cli/options_spec: in variables that are nearly ours are named, once, and those of " ..
    "Accelerate are not" } },
  { "ACCELERATE_USE_{FSDP, DEEPSPEED, MEGATRON_LM, PARALLELISM_CONFIG, SAGEMAKER}", spec = { NO_ENGINE,
    "sharded/fsdp_plugin_spec: takes a plain table, and the environment's wish",
    "deepspeed/accelerator_spec: takes the plugin's fields as a table, and ACCELERATE_USE_DEEPSPEED" } },
  { "FSDP_*, PARALLELISM_CONFIG_*, MEGATRON_LM_*, ACCELERATE_DEEPSPEED_*, ACCELERATE_GRADIENT_CLIPPING, " ..
    "ACCELERATE_CONFIG_DS_FIELDS", spec = { NO_ENGINE,
    "sharded/fsdp_plugin_spec: takes what is not given from FSDP_ variables",
    "sharded/parallelism_spec: takes sizes from PARALLELISM_CONFIG_ variables",
    "deepspeed/plugin_spec: reads its variables, where no argument is given",
    "deepspeed/plugin_spec: refuses settings of the accelerate config beside deepspeed_config_file" } },
  { "ACCELERATE_FP8_{BACKEND, MARGIN, INTERVAL, FORMAT, AMAX_HISTORY_LEN, AMAX_COMPUTE_ALGO, " ..
    "OVERRIDE_FPROP/DGRAD/WGRAD, USE_AUTOCAST_DURING_EVAL, USE_MXFP8_BLOCK_SCALING, OPT_LEVEL, " ..
    "PAD_INNER_DIM, ENABLE_FSDP_FLOAT8_ALL_GATHER}",
    spec = "accelerate/float8_spec: take what is not given from variables" },
  { "ACCELERATE_BYPASS_DEVICE_MAP, ACCELERATE_ALLOW_CP_STANDALONE, ACCELERATE_INIT_INCLUDE_BUFFERS, " ..
    "ACCELERATE_ENABLE_RICH, ACCELERATE_DOWNCAST_BF16, ACCELERATE_DEBUG_RDV_FILE, " ..
    "ACCELERATE_NUM_PROCESSES, FORK_LAUNCHED", spec = {
    "accelerate/preparing_spec: refuses a model that is spread over several devices on several ranks, " ..
    "unless it is told to take it",
    "accelerate/big_modeling_spec: makes models of every kind of layer without memory",
    "accelerate/state_spec: ends with the group left: who waits is told, and numbers stay",
    "cli/options_spec: with a bad value are an error that says what was expected" } },
  { "HF_HOME, XDG_CACHE_HOME", spec = "cli/config_spec: is found where Accelerate keeps it" },
  { "truth words", spec = "cli/options_spec: of switches in variables are Accelerate's words, in any case" },
}
