-- Messages quote what they were given, and a terminal must not obey it: a configuration file, a
-- variable or a file's name may come from a stranger.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"

local E = "\27]0;x\a"
local QUOTED = "?]0;x?"

local function in_folder(files, body)
  host.in_folder(function(folder)
    for name, text in pairs(files or {}) do assert(fs.write(folder .. "/" .. name, text)) end
    body(folder)
  end)
end

-- The words are started in a folder with files; what is printed quotes E without its escapes.
local function case(name, words, files, env)
  it(name, function()
    in_folder(files, function(folder)
      env = env or {}
      env.HF_HOME = env.HF_HOME or folder
      local _, out, err = host.run(words, { folder = folder, env = env })
      local text = out .. err
      assert(text:find(QUOTED, 1, true), "it is not quoted:\n" .. text)
      assert(not text:find("[%z\1-\8\11-\31\127]"), "control characters:\n" .. text)
    end)
  end)
end

local YAML = '"\\e]0;x\\a"' -- E in a file
local function configured(key, value)
  return { ["c.yaml"] = ("%s: %s\ndistributed_type: NO\n"):format(key, value) }
end
local IN_FILE = { "--config_file", "c.yaml", "-e", "" }

describe("control characters of", function()
  case("an option's value", { "--mixed_precision", E, "-e", "" })
  case("an option's number", { "--num_processes", E, "-e", "" })
  case("an unknown option", { "--" .. E, "-e", "" })
  case("a variable's value", { "-e", "" }, nil, { ACCELERATE_MIXED_PRECISION = E })
  case("a value in a configuration file", IN_FILE, configured("mixed_precision", YAML))
  case("a key in a configuration file", IN_FILE, configured(YAML, "1"))
  case("the type in a configuration file", IN_FILE, { ["c.yaml"] = "distributed_type: " .. YAML })
  case("a configuration file's name", { "--config_file", E, "-e", "" })
  case("a value that --explain shows", { "--config_file", "c.yaml", "--explain" },
    configured("main_process_ip", YAML))
  case("a configuration that env shows", { "env" }, { [E] = "a: b\27c\n" }, { ACCELERATE_CONFIG_FILE = E })
  case("a key that config update does not know", { "config", "update", "--config_file", "c.yaml" },
    configured(YAML, "1"))
  case("a file that config default writes", { "config", "default", "--config_file", E .. ".yaml" })
  case("a script that is not there", { E .. ".lua" })
  case("a script of several ranks that is not there", { "--num_processes", "2", E .. ".lua" })
  case("a script that fails", { E .. ".lua" }, { [E .. ".lua"] = "error 'x'" })
  case("a script of several ranks that fails", { "--num_processes", "2", E .. ".lua" },
    { [E .. ".lua"] = "error 'x'" })
  case("a word that is no command", { E })
  case("a command's word", { "config", E })
  case("a module", { "-l", E })
  case("a program", { "--num_processes", "2", "--no_python", E })
  case("a secret's file", { "--secret_file", E, "--num_machines", "2", "--num_processes", "2",
    "--main_process_ip", "127.0.0.1", "x.lua" }, { ["x.lua"] = "" })
  case("a file of to-fsdp2", { "to-fsdp2", "--overwrite", "--config_file", E .. ".yaml" },
    { [E .. ".yaml"] = "distributed_type: NO\n" })
end)
