--- Names of files and beginnings of names, as Accelerate has them. Where a name has a pattern,
--- `{suffix}` stands for "" or "-00001-of-00005".
local properties = require "accelerate.utils.properties"

return properties.strict("accelerate.utils.constants", {
  MODEL_NAME = "pytorch_model",
  WEIGHTS_NAME = "pytorch_model.bin",
  WEIGHTS_PATTERN_NAME = "pytorch_model{suffix}.bin",
  WEIGHTS_INDEX_NAME = "pytorch_model.bin.index.json",
  SAFE_MODEL_NAME = "model",
  SAFE_WEIGHTS_NAME = "model.safetensors",
  SAFE_WEIGHTS_PATTERN_NAME = "model{suffix}.safetensors",
  SAFE_WEIGHTS_INDEX_NAME = "model.safetensors.index.json",
  FSDP_MODEL_NAME = "pytorch_model_fsdp",
  OPTIMIZER_NAME = "optimizer",
  SCHEDULER_NAME = "scheduler",
  SAMPLER_NAME = "sampler",
  SCALER_NAME = "scaler.pt",
  RNG_STATE_NAME = "random_states",
  PROFILE_PATTERN_NAME = "profile_{suffix}.json",
})
