return {
  group = "P", title = "FP8",
  { "backend choice",
    spec = {
      "accelerate/float8_spec: computes the other layers in bfloat16, and its recipe is torchao's where " ..
        "nobody says which",
      "accelerate/float8_spec: say what is wrong, and what is not there" } },
  { "too old a GPU", spec = "gpu/float8_spec: is fp16 on a GPU that does not multiply eight bits" },
  { "TERecipeKwargs",
    spec = { "accelerate/float8_spec: have Accelerate's fields and defaults",
      "accelerate/float8_spec: takes scales from earlier steps, as transformer-engine does",
      "accelerate/float8_spec: computes what override_linear_precision names in bfloat16" } },
  { "AORecipeKwargs",
    spec = {
      "accelerate/float8_spec: are all whose sizes are multiples of 16 but the first and the last, " ..
        "of torchao's kind",
      "sharded/eight_spec: train with the bits of those that are gathered in bfloat16" } },
  { "MSAMPRecipeKwargs", later = "the recipe of MS-AMP (opt_level = 'O2') is not there",
    spec = "accelerate/float8_spec: say what is wrong, and what is not there" },
  { "convert_model / apply_fp8_autowrap / has_transformer_engine_layers",
    spec = {
      "accelerate/float8_spec: are all whose sizes are multiples of 16, of transformer-engine's kind",
      "accelerate/float8_spec: computes in evaluation in eight bits of torchao's recipe, and of " ..
        "transformer-engine's if it says so" } },
  { "model and optimizer together",
    spec = "accelerate/float8_spec: has the scales between steps, " ..
    "and a resumed run goes on with the same bits" },
  { "underlying precision", spec = "accelerate/float8_spec: give results of the type of autocast" },
}
