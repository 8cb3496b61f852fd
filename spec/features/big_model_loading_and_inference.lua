return {
  group = "Q", title = "Big-model loading and inference",
  { "init_empty_weights(include_buffers=None)",
    spec = "accelerate/big_modeling_spec: makes models of every kind of layer without memory" },
  { "init_on_device(device, include_buffers)",
    spec = "accelerate/big_modeling_spec: makes parameters on a device, with values where it has memory" },
  { "infer_auto_device_map",
    spec = "big/device_maps_spec: infers the same map for the same limits" },
  { "get_balanced_memory(low_zero=false)",
    spec = "big/device_maps_spec: balances the limits alike" },
  { "get_max_memory",
    spec = "big/policy_spec: orders GPUs by number, then the CPU, then the disk" },
  { "compute_module_sizes, calculate_maximum_sizes, get_max_layer_size, dtype_byte_size, " ..
    "named_module_tensors, convert_file_size_to_int",
    spec = "big/device_maps_spec: counts the bytes of modules, of halves, " ..
      "of buffers and of the largest layers alike" },
  { "check_device_map, clean_device_map",
    spec = "big/policy_spec: that leaves parameters out is refused by their names" },
  { "find_tied_parameters, retie_parameters, check_tied_parameters_in_config, " ..
    "check_tied_parameters_on_same_device",
    spec = "big/device_maps_spec: finds the same tied parameters" },
  { "dispatch_model",
    spec = "big/dispatch_spec: is written by dispatch_model for what lies in memory" },
  { "load_checkpoint_and_dispatch",
    spec = "big/dispatch_spec: computes the same bits from the file, " ..
      "whole or with what memory has not kept" },
  { "cpu_offload, disk_offload",
    spec = "big/dispatch_spec: is written by disk_offload in Accelerate's form, and read again" },
  { "cpu_offload_with_hook",
    spec = "big/dispatch_spec: with a hook brings a model back on request" },
  { "set_module_tensor_to_device",
    spec = "big/hooks_spec: keeps the object, and gives it a value, a type or no elements" },
  { "get_state_dict_offloaded_model, get_state_dict_from_offload, align_module_device, " ..
    "has_offloaded_params",
    spec = "big/hooks_spec: gives offloaded weights for a moment, and in a state dict" },
  { "attach_layerwise_casting_hooks",
    spec = "big/hooks_spec: keeps linear layers in the small type between calls, but the skipped ones" },
}
