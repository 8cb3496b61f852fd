return {
  group = "Y", title = "Commands",
  { "accelerate config", spec = { "cli/commands_spec: asks by number or text in a pipe, and writes a " ..
    "file that runs " ..
    "have their settings from", "cli/commands_spec: has a menu with arrow keys on a terminal" } },
  { "accelerate config default",
    spec = "cli/commands_spec: default writes one without questions, and leaves an existing file" },
  { "accelerate config update",
    spec = "cli/commands_spec: update replaces keys of earlier versions and adds what is missing" },
  { "accelerate launch", spec = "cli/options_spec: may be written with dashes, " ..
    "underscores, = and after launch" },
  { "accelerate test", spec = { "cli/commands_spec: checks the ranks that are configured, and sums up",
    "cli/commands_spec: fails when a check fails on any rank, and says which" } },
  { "accelerate env", spec = "cli/env_spec: tells versions, machine, memory and configuration" },
  { "accelerate estimate-memory",
    spec = "cli/commands_spec: prints largest layer, total and training size by type, " ..
    "from the headers of files" },
  { "accelerate merge-weights", spec = "cli/commands_spec: writes sharded weights into one file" },
  { "accelerate to-fsdp2", spec = "cli/commands_spec: converts a file of Accelerate, as Accelerate does" },
  { "accelerate tpu-config",
    spec = "cli/config_spec: prints how to call it, " ..
    "names the nearest command and ends with 1" },
  { "separate programs", spec = "cli/options_spec: may be written with dashes, " ..
    "underscores, = and after launch" },
  { "no sub-command", spec = "cli/config_spec: prints how to call it, " ..
    "names the nearest command and ends with 1" },
}
