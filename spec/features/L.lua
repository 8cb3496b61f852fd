return {
  group = "L", title = "State classes",
  { "PartialState(cpu=false, **init kwargs)" },
  { "AcceleratorState" },
  { "GradientState" },
  { "several loaders at once" },
  { "loader left by break" },
  { "text form" },
}
