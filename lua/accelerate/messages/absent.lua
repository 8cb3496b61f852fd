--- Names that Accelerate has and this library does not have yet, by what they belong to: what the
--- message about one says.
local GROUPS = {
  ["fully sharded data parallel"] = [[fsdp2_prepare_model fsdp2_load_full_state_dict
    fsdp2_apply_ac fsdp2_canonicalize_names fsdp2_switch_optimizer_parameters get_fsdp2_grad_scaler
    compile_regions_fsdp2 ensure_weights_retied]],
  ["DeepSpeed's engine; under a DeepSpeedPlugin prepare's own objects step as it does"] = [[
    DeepSpeedOptimizerWrapper DeepSpeedSchedulerWrapper DeepSpeedEngineWrapper
    DeepSpeedSequenceParallelConfig deepspeed_required compile_regions_deepspeed
    map_pytorch_optim_to_deepspeed]],
  ["Megatron-LM"] = [[MegatronLMPlugin MegatronLMDummyDataLoader MegatronLMDummyScheduler
    AbstractTrainStep BertTrainStep GPTTrainStep T5TrainStep add_model_config_to_megatron_parser
    avg_losses_across_data_parallel_group]],
  ["tensor and context parallelism"] = [[TorchTensorParallelPlugin
    TorchTensorParallelConfig TorchContextParallelConfig get_model_tp_size]],
  ["quantisation by torchao"] = [[CustomDtype torchao_required]],
  ["FP8 as a library has it; apply_fp8_autowrap wraps a forward"] = [[contextual_fp8_autocast]],
  ["compilation of graphs; dynamo_backend = \"cudagraphs\" records steps on a GPU"] = [[
    TorchDynamoPlugin compile_regions has_compiled_regions is_compiled_module]],
}

local what = {}
for text, names in pairs(GROUPS) do
  for name in names:gmatch "%S+" do what[name] = text end
end
return what
