return {
  group = "C", title = "Preparing objects",
  { "prepare(*objects, device_placement=None)",
    spec = {
      "accelerate/accelerator_steps_spec: returns objects in the order given, whatever that is",
      "accelerate/accelerator_steps_spec: passes objects of other kinds through untouched",
      "accelerate/accelerator_steps_spec: takes one placement for each object",
      "accelerate/preparing_spec: takes optimizers first and schedulers after, so that a scheduler may " ..
        "come before its optimizer",
      "accelerate/preparing_spec: places each object as its entry of device_placement says, state of " ..
        "optimizers included" } },
  { "prepare: repeat calls",
    spec = {
      "accelerate/accelerator_steps_spec: gives the same object for one that was prepared, " ..
        "also by its first form",
      "accelerate/preparing_spec: lists objects anew after free_memory, and wraps nothing twice" } },
  { "prepare: refused models",
    spec = "accelerate/preparing_spec: refuses a model that is spread over several devices on several " ..
    "ranks, unless it is told to take it" },
  { "prepare under FSDP2",
    later = "fully sharded data parallel is not there yet; leave the option out",
    spec = {
      "accelerate/preparing_spec: says which engines would refuse what",
      "accelerate/accelerator_spec: says which engines are not there yet" } },
  { "prepare under DeepSpeed",
    spec = {
      "deepspeed/accelerator_spec: fills 'auto' from the run",
      "deepspeed/accelerator_spec: chooses the smaller or the larger of several loaders' batch sizes",
      "deepspeed/accelerator_spec: needs a loader's batch_size for 'auto'",
      "deepspeed/accelerator_spec: refuses what only goes together, and two models" } },
  { "prepare_model(model, device_placement, evaluation_mode=false)",
    spec = {
      "accelerate/preparing_spec: with evaluation_mode leaves a model out of everything that trains",
      "accelerate/preparing_spec: places each object as its entry of device_placement says, state of " ..
        "optimizers included",
      "accelerate/accelerator_steps_spec: refuses the wrong kind in its single forms",
      "accelerate/mixed_precision_spec: runs a prepared model's forward in bfloat16 and returns float32",
      "accelerate/parallel_spec: start from rank 0's parameters and buffers" } },
  { "prepare_optimizer(optimizer, device_placement)",
    spec = {
      "accelerate/preparing_spec: places each object as its entry of device_placement says, state of " ..
        "optimizers included",
      "accelerate/accelerator_steps_spec: keeps an optimizer's state",
      "accelerate/accelerator_steps_spec: refuses the wrong kind in its single forms" } },
  { "prepare_data_loader(loader, device_placement, slice_fn_for_dispatch)",
    spec = {
      "accelerate/data_loader_spec: gives each rank its batches and fills the last ones from the start",
      "accelerate/data_loader_dispatch_spec: cuts by a function of one's own",
      "accelerate/preparing_spec: places each object as its entry of device_placement says, state of " ..
        "optimizers included" } },
  { "prepare_scheduler(scheduler)",
    spec = {
      "accelerate/preparing_spec: takes optimizers first and schedulers after, so that a scheduler may " ..
        "come before its optimizer",
      "accelerate/accelerator_steps_spec: refuses the wrong kind in its single forms" } },
  { "free_memory(*objects) / clear(*objects)",
    spec = {
      "accelerate/accelerator_steps_spec: free_memory forgets, and gives a nil for each argument",
      "accelerate/preparing_spec: lists objects anew after free_memory, and wraps nothing twice",
      "accelerate/preparing_spec: gives memory back" } },
  { "unwrap_model(model, keep_fp32_wrapper=true, keep_torch_compile=true)",
    spec = {
      "accelerate/preparing_spec: unwraps to the model itself, with the parameters it has and, if asked, " ..
        "its own forward",
      "accelerate/mixed_precision_spec: gives the model its own forward back through unwrap_model" } },
  { "verify_device_map(model)",
    spec = "accelerate/preparing_spec: refuses a model that is spread over several devices on several " ..
    "ranks, unless it is told to take it" },
  { "copying an Accelerator",
    spec = "accelerate/preparing_spec: copies everything but an Accelerator and its state, " ..
    "of which there is one" },
  { "pickling",
    later = "an object cannot go from one process to another: what travels is data, never code",
    spec = "accelerate/preparing_spec: copies everything but an Accelerator and its state, " ..
      "of which there is one" },
}
