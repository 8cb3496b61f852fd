return {
  group = "AC", title = "Utilities",
  { "send_to_device(tensor, device, non_blocking, skip_keys)",
    spec = "accelerate/utilities_spec: send_to_device moves tensors and what has a method to, " ..
    "and leaves the rest" },
  { "recursively_apply, honor_type, is_namedtuple, listify, find_device, find_batch_size (and the " ..
    "ignorant form), get_data_structure, get_shape, initialize_tensors",
    spec = { "accelerate/utilities_spec: walks keep the kind of their containers",
      "accelerate/utilities_spec: tells device, batch size, form and shapes, and makes tensors of a form" } },
  { "concatenate(data, dim=0)",
    spec = "accelerate/utilities_spec: concatenate joins values of one form" },
  { "slice_tensors, pad_input_tensors",
    spec = "accelerate/utilities_spec: slice_tensors takes positions, pad_input_tensors fills with zeros" },
  { "convert_to_fp32, convert_outputs_to_fp32",
    spec = "accelerate/utilities_spec: convert_to_fp32 converts the two half types only" },
  { "extract_model_from_parallel, get_pretty_name, recursive_getattr, merge_dicts, convert_bytes, " ..
    "is_port_in_use, get_free_port, check_os_kernel, get_module_children_bottom_up, " ..
    "clean_state_dict_for_safetensors, model_has_dtensor",
    spec = { "accelerate/utilities_spec: names, bytes, fields of fields, merged tables",
      "accelerate/utilities_spec: modules from the inside out, and the model behind a prepared one",
      "accelerate/utilities_spec: clean_state_dict_for_safetensors keeps one name of each tensor, contiguous",
      "accelerate/utilities_spec: ports: a free one is not in use until something listens on it" } },
  { "patch_environment, clear_environment, purge_accelerate_environment",
    spec = { "accelerate/utilities_spec: patch_environment sets upper-case names and restores them, " ..
    "also after an error",
      "accelerate/utilities_spec: clear_environment empties it for the time of a call",
      "accelerate/utilities_spec: purge_accelerate_environment undoes what a function " ..
      "did to ACCELERATE_ variables" } },
  { "str_to_bool, get_int_from_env, parse_flag_from_env, parse_choice_from_env, " ..
    "convert_dict_to_env_variables",
    spec = "accelerate/utilities_spec: variables are read with their words for yes and no, and numbers" },
  { "is_*_available (about 60), compare_versions, is_torch_version",
    spec = { "accelerate/utilities_spec: is told by is_..._available, and a name that is not there " ..
    "raises with the nearest",
      "accelerate/utilities_spec: versions are compared by their numbers" } },
  { "get_gpu_info, check_cuda_p2p_ib_support, check_cuda_fp8_capability, get_current_device_type",
    spec = "accelerate/utilities_spec: GPUs are asked of the driver" },
  { "write_basic_config(mixed_precision, save_location)",
    spec = "accelerate/utilities_spec: write_basic_config writes what Accelerate reads, and leaves a " ..
    "file that is there" },
  { "install_xla, GatheredParameters, is_peft_model",
    spec = { "accelerate/utilities_spec: what needs other libraries says so",
      "deepspeed/ranks_spec: give the whole values, and take one rank's changes for all",
      "accelerate/utilities_spec: modules from the inside out, and the model behind a prepared one" } },
  { "prepare_pippy(model, split_points='auto', no_split_module_classes, example_args, example_kwargs, " ..
    "num_chunks, gather_output=false)",
    later = "pipeline parallelism is not there yet",
    spec = "accelerate/utilities_spec: what needs other libraries says so" },
}
