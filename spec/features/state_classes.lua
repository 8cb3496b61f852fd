return {
  group = "L", title = "State classes",
  { "PartialState(cpu=false, **init kwargs)", spec = {
    "accelerate/state_spec: knows one process on the CPU",
    "accelerate/state_spec: names the reset as the cause when its facts are gone",
    "accelerate/state_spec: of PartialState leaves an Accelerator what it knows",
    "accelerate/config_spec: takes the group that there is, and no other" } },
  { "AcceleratorState", spec = {
    "accelerate/state_spec: is only made by an Accelerator",
    "accelerate/state_spec: has all of PartialState, " ..
      "and refuses what the first Accelerator was not made with",
    "accelerate/state_spec: of AcceleratorState is named as the cause, and a new Accelerator ends it",
    "accelerate/state_spec: has no plugins of other engines" } },
  { "GradientState", spec = {
    "accelerate/state_spec: is shared, and starts in sync outside of any loader",
    "accelerate/state_spec: takes a plugin, shows what differs from its defaults, and prints it" } },
  { "several loaders at once",
    spec = "accelerate/state_spec: has the innermost of several loaders as the active one" },
  { "loader left by break",
    spec = "accelerate/state_spec: keeps a loader that was left by break until it " ..
    "is iterated again, or dropped" },
  { "text form", spec = "accelerate/state_spec: prints the environment and the precision" },
}
