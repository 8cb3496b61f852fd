return {
  group = "AA", title = "Config file",
  { "place", spec = "cli/config_spec: is found where Accelerate keeps it" },
  { "format", spec = { "cli/config_spec: may be JSON by its ending, or JSON as YAML has it",
    "core/yaml_spec: has the values that PyYAML reads" } },
  { "common keys", spec = "cli/config_spec: starts ranks that see its settings" },
  { "cluster keys", spec = { "cli/config_spec: starts ranks that see its settings",
    "cli/config_spec: that chooses what is not there is refused with the reason" } },
  { "SageMaker keys", spec = "cli/config_spec: that chooses what is not there is refused with the reason" },
  { "old keys", spec = "cli/config_spec: is read as it is: YAML 1.1, old keys, " ..
    "nested keys without their prefix" },
  { "nested keys", spec = "cli/config_spec: is read as it is: YAML 1.1, old keys, " ..
    "nested keys without their prefix" },
  { "errors", spec = { "cli/config_spec: lists keys that are not known, each with the nearest",
    "cli/config_spec: names file, line and key of what is wrong" } },
  { "saving", spec = "cli/commands_spec: update replaces keys of earlier versions and adds what is missing" },
  { "when read", spec = "cli/config_spec: is found where Accelerate keeps it" },
}
