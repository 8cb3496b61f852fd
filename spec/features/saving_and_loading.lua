return {
  group = "J", title = "Saving and loading",
  { "save(obj, f, safe_serialization=false)",
    spec = {
      "accelerate/saving_spec: writes on the main process only",
      "accelerate/saving_spec: takes the format from the option before the ending",
      "accelerate/accelerator_weights_spec: are written by the main process" } },
  { "save_model(model, dir, max_shard_size='10GB', safe_serialization=true)",
    spec = {
      "accelerate/accelerator_weights_spec: come back from one file",
      "accelerate/accelerator_weights_spec: come back from PyTorch's format, whole and in shards",
      "accelerate/accelerator_weights_spec: hold tied weights once" } },
  { "sharding rule",
    spec = {
      "accelerate/accelerator_weights_spec: are cut into shards as huggingface_hub cuts them",
      "accelerate/accelerator_weights_spec: come back from shards, and an index names them" } },
  { "get_state_dict(model, unwrap=true)",
    spec = "accelerate/preparing_spec: unwraps to the model itself, with the parameters it has and, if " ..
    "asked, " ..
      "its own forward" },
  { "save_state(output_dir=None, safe_serialization=true, **kwargs)",
    spec = {
      "accelerate/checkpoint_spec: has Accelerate's names, and a manifest with sizes and checksums",
      "accelerate/checkpoint_spec: may have its weights in PyTorch's format" } },
  { "automatic_checkpoint_naming",
    spec = {
      "accelerate/checkpoint_spec: is looked for where naming is automatic",
      "accelerate/checkpoint_spec: is never written over another one with " ..
      "automatic naming, and old ones go" } },
  { "total_limit",
    spec = "accelerate/checkpoint_spec: is never written over another one with " ..
    "automatic naming, and old ones go" },
  { "load_state(input_dir=None, load_kwargs=None, **kwargs)",
    spec = {
      "accelerate/checkpoint_runs_spec: at any moment goes on with the same bits",
      "accelerate/checkpoint_spec: is loaded with load_kwargs, as Accelerate hands them on",
      "accelerate/checkpoint_spec: fits the objects that are there" } },
  { "load_state: random states", spec = "accelerate/checkpoint_spec: brings back optimizers and generators" },
  { "load_state: loader position",
    spec = "accelerate/checkpoint_runs_spec: at any moment goes on with the same bits" },
  { "register_for_checkpointing(*objects)",
    spec = "accelerate/accelerator_weights_spec: is registered in order, and only what can be saved" },
  { "register_save_state_pre_hook(hook(models, weights, dir))",
    spec = "accelerate/checkpoint_spec: goes through hooks, which may take weights and models over" },
  { "register_load_state_pre_hook(hook(models, dir))",
    spec = "accelerate/checkpoint_spec: goes through hooks, which may take weights and models over" },
  { "save_on_each_node",
    spec = "accelerate/checkpoint_paths_spec: lets the main process of every machine write a checkpoint " ..
    "with its own ranks in it" },
  { "utils.load",
    spec = {
      "accelerate/saving_spec: keep every kind of plain value",
      "accelerate/torch_files_spec: holds plain values, in every protocol",
      "accelerate/torch_files_spec: is refused by name when it holds what is no plain data" } },
  { "load_checkpoint_in_model",
    spec = {
      "accelerate/accelerator_weights_spec: come back from one file",
      "accelerate/accelerator_weights_spec: say what is wrong with a checkpoint" } },
  { "merge_fsdp_weights(dir, out, safe=true, remove=false)",
    spec = {
      "cli/commands_spec: writes its weights under the model's names",
      "cli/commands_spec: writes what is no tensor in PyTorch's format only",
      "cli/commands_spec: names the folders of a checkpoint that is given in their place" } },
  { "DeepSpeed and Megatron checkpoints", spec = {
    "deepspeed/ranks_spec: goes on with the same bits, its schedule too, at every stage",
    "accelerate/accelerator_spec: says which engines are not there yet" } },
  { "offload_state_dict, offload_weight, load_offloaded_weight, save_offload_index, " ..
      "OffloadedWeightsLoader, PrefixedDataset, extract_submodules_state_dict",
    spec = {
      "accelerate/offload_spec: has Accelerate's files, and comes back",
      "accelerate/offload_spec: has Accelerate's index, to which later entries are added",
      "accelerate/offload_spec: has the state dict first, and reads safetensors files that its index names",
      "accelerate/offload_spec: gives the entries of submodules" } },
}
