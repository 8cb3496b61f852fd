return {
  group = "M", title = "Configuration and handler objects",
  { "DataLoaderConfiguration" },
  { "ProjectConfiguration" },
  { "GradientAccumulationPlugin" },
  { "KwargsHandler.to_kwargs" },
  { "AutocastKwargs" },
  { "DistributedDataParallelKwargs" },
  { "DDP communication hooks" },
  { "GradScalerKwargs" },
  { "InitProcessGroupKwargs" },
  { "ProfileKwargs" },
  { "AORecipeKwargs, TERecipeKwargs, MSAMPRecipeKwargs, FP8RecipeKwargs (deprecated)" },
}
