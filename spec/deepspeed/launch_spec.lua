-- host/settings/engines.c, hostfile.c: the options, variables and keys of DeepSpeed, and its
-- hostfile.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local messages = require "spec.support.messages"

local has = messages.has

local PRINT = [[
local all = require("accelerate.utils.environment").snapshot()
for name, value in require("accelerate.utils.ordered").pairs(all) do
  if name:find "DEEPSPEED" or name:find "^ACCELERATE_GRADIENT" or name:find "DS_FIELDS" then
    print(name .. "=" .. value)
  end
end]]

local own = io.popen("hostname"):read "*l"
local HOSTS = own .. " slots=2\n# a comment\nb slots=4   # and one behind\n\nc slots=2\n"

-- Runs words with files in a folder; returns stdout and stderr.
local function run(status, words, files, env)
  local out, err
  host.in_folder(function(folder)
    assert(fs.write(folder .. "/print.lua", PRINT))
    assert(fs.write(folder .. "/hosts", HOSTS))
    for name, text in pairs(files or {}) do assert(fs.write(folder .. "/" .. name, text)) end
    local variables = { HF_HOME = folder }
    for name, value in pairs(env or {}) do variables[name] = value end
    local got
    got, out, err = host.run(words, { env = variables, folder = folder })
    assert(got == status, ("status %d, expected %d\nstdout: %s\nstderr: %s"):format(got, status, out, err))
  end)
  return out, err
end

local function explained(out, name) return out:match("\n" .. name .. " +([^\n]*)\n") end

describe("options of DeepSpeed", function()
  it("travel to the ranks as Accelerate's variables", function()
    local out = run(0, { "--use_deepspeed", "--zero-stage=3", "--offload_optimizer_device", "nvme",
      "--offload_param_device", "cpu", "--offload_optimizer_nvme_path", "/a", "--offload_param_nvme_path",
      "/b",
      "--gradient_accumulation_steps", "4", "--gradient_clipping", "1.0", "--zero3_init_flag", "false",
      "--zero3_save_16bit_model", "true", "--deepspeed_config_file", "ds.json",
      "--deepspeed_moe_layer_cls_names", "A,B", "print.lua" })
    assert.are.equal([[
ACCELERATE_DEEPSPEED_CONFIG_FILE=ds.json
ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES=A,B
ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE=nvme
ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH=/a
ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE=cpu
ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH=/b
ACCELERATE_DEEPSPEED_ZERO3_INIT=false
ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL=true
ACCELERATE_DEEPSPEED_ZERO_STAGE=3
ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4
ACCELERATE_GRADIENT_CLIPPING=1.0
ACCELERATE_USE_DEEPSPEED=true
]], out)
    assert.are.equal("ACCELERATE_USE_DEEPSPEED=true\n", (run(0, { "--use_deepspeed", "print.lua" })))
  end)

  it("have no effect without --use_deepspeed, which a line says", function()
    local out, err = run(0, { "--zero_stage", "3", "--gradient_clipping", "1", "print.lua" })
    assert.are.equal("", out)
    has(err, "accel-run: --zero_stage has no effect without --use_deepspeed\n")
    has(err, "accel-run: --gradient_clipping has no effect without --use_deepspeed\n")
  end)

  it("are checked, and exclude other engines", function()
    for _, case in ipairs { { "--zero_stage", "4", "--zero_stage: expected 0|1|2|3, got '4'" },
      { "--offload_param_device", "disk", "--offload_param_device: expected none|cpu|nvme, got 'disk'" },
      { "--zero3_init_flag", "perhaps", "--zero3_init_flag: expected true|false, got 'perhaps'" },
      { "--use_fsdp", "--quiet", "--use_fsdp and --use_deepspeed: give one of them" },
      { "--num_processes=2", "--multi_gpu", "--multi_gpu and --use_deepspeed: give one of them" } } do
      local _, err = run(2, { "--use_deepspeed", case[1], case[2], "print.lua" })
      has(err, "accel-run: " .. case[3])
    end
  end)

  it("of other kinds are named by the script as they were given", function()
    local files = { ["a.lua"] = "print(require('accelerate').Accelerator().gradient_accumulation_steps)" }
    local _, err = run(1, { "--use_deepspeed", "--gradient_clipping", "much", "a.lua" }, files)
    has(err, "DeepSpeedPlugin: --gradient_clipping: expected a number or 'auto', got 'much'")
    _, err = run(1, { "--use_deepspeed", "--gradient_clipping=-1", "a.lua" }, files)
    has(err, "DeepSpeedPlugin: --gradient_clipping must be at least 0, got -1")
    assert.are.equal("1\n",
      (run(0, { "--use_deepspeed", "--gradient_accumulation_steps", "auto", "a.lua" }, files)))
  end)

  it("stand in the help under their switch", function()
    messages.matches(run(0, { "--help" }), "\n with %-%-use_deepspeed\n  %-%-deepspeed_config_file FILE\n")
  end)
end)

describe("a configuration file with deepspeed_config", function()
  local YAML = "distributed_type: DEEPSPEED\nnum_processes: 1\nmixed_precision: bf16\ndeepspeed_config:\n" ..
    "  zero_stage: 3\n  gradient_accumulation_steps: 2\n  gradient_clipping: 1.0\n  zero3_init_flag: true\n"

  it("chooses DeepSpeed, and its keys are the options", function()
    local out, err = run(0, { "--config_file", "c.yaml", "print.lua" }, { ["c.yaml"] = YAML })
    for _, line in ipairs { "ACCELERATE_USE_DEEPSPEED=true", "ACCELERATE_DEEPSPEED_ZERO_STAGE=3",
      "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=2", "ACCELERATE_GRADIENT_CLIPPING=1.0",
      "ACCELERATE_DEEPSPEED_ZERO3_INIT=true",
      "ACCELERATE_CONFIG_DS_FIELDS=mixed_precision,zero_stage,gradient_accumulation_steps," ..
        "gradient_clipping,zero3_init_flag" } do
      has(out, line .. "\n")
    end
    assert.are.equal("", err)
    has(run(0, { "--config_file", "c.yaml", "--zero_stage", "1", "--explain" }, { ["c.yaml"] = YAML }),
      "zero_stage                             1        --zero_stage\n")
  end)

  it("is left alone where nothing chooses DeepSpeed, and names keys that are not known", function()
    local text = YAML:gsub("DEEPSPEED", "'NO'"):gsub("mixed_precision: bf16\n", "")
    assert.are.equal("", (run(0, { "--config_file", "c.yaml", "print.lua" }, { ["c.yaml"] = text })))
    local _, err = run(0, { "--config_file", "c.yaml", "print.lua" },
      { ["c.yaml"] = YAML .. "  zero_stages: 1\n" })
    has(err, "c.yaml:9: deepspeed_config: the key zero_stages is not known, and has no effect\n")
  end)

  it("beside deepspeed_config_file refuses what stands in the DeepSpeed file", function()
    local files = { ["ds.json"] = '{ "zero_optimization": { "stage": 2 } }',
      ["c.yaml"] = "distributed_type: DEEPSPEED\nnum_processes: 1\ndeepspeed_config:\n" ..
        "  deepspeed_config_file: ds.json\n  zero_stage: 2\n",
      ["a.lua"] = "require('accelerate').Accelerator()" }
    local _, err = run(1, { "--config_file", "c.yaml", "a.lua" }, files)
    has(err, "gives deepspeed_config_file (ds.json) and beside it zero_stage")
  end)

  it("tells the script where a value came from", function()
    local _, err = run(1, { "--config_file", "c.yaml", "--deepspeed_config_file", "ds.json", "a.lua" },
      { ["c.yaml"] = "distributed_type: DEEPSPEED\nnum_processes: 1\n",
        ["ds.json"] = '{ "zero_optimization": {\n  "stage": 2 } }', ["a.lua"] =
        "require('accelerate').DeepSpeedPlugin { zero_stage = 3 }" })
    has(err, "ds.json:2: zero_optimization.stage = 2, and zero_stage = 3")
    _, err = run(1, { "--use_deepspeed", "--zero_stage", "1", "--deepspeed_config_file", "ds.json", "a.lua" },
      { ["ds.json"] = '{ "zero_optimization": {\n  "stage": 2 } }', ["a.lua"] =
        "require('accelerate').DeepSpeedPlugin()" })
    has(err, "ds.json:2: zero_optimization.stage = 2, and --zero_stage = 1")
  end)
end)

describe("a hostfile of DeepSpeed", function()
  local function explain(status, ...)
    return run(status, { "--use_deepspeed", "--deepspeed_hostfile", "hosts", "--explain", ... })
  end

  it("says how many machines and ranks there are, where machine 0 is, and which one this is", function()
    local out = run(0, { "--use_deepspeed", "--deepspeed_hostfile", "hosts", "--deepspeed_exclusion_filter",
      "b",
      "--explain" })
    for name, value in pairs { num_machines = "2", num_processes = "4", machine_rank = "0",
      main_process_ip = own } do
      messages.matches(explained(out, name), "^" .. value:gsub("%p", "%%%0") ..
        " +%-%-deepspeed_hostfile hosts$")
    end
  end)

  it("has filters for machines and for GPUs", function()
    local words = { "--use_deepspeed", "--deepspeed_hostfile", "hosts", "--machine_rank", "1", "--explain" }
    local function with(option, value)
      return run(0, { option, value, unpack(words) })
    end
    local out = with("--deepspeed_inclusion_filter", "b:1,3@c")
    messages.matches(explained(out, "num_processes"), "^4 ")
    messages.matches(explained(out, "main_process_ip"), "^b ")
    messages.matches(explained(out, "gpu_ids"), "^all ")
    out = run(0, { "--deepspeed_inclusion_filter", "c@b:1,3", unpack(words) })
    messages.matches(explained(out, "gpu_ids"), "^all ")
    out = with("--deepspeed_exclusion_filter", "b:0,2")
    messages.matches(explained(out, "num_machines"), "^3 ")
    messages.matches(explained(out, "gpu_ids"), "^1,3 ")
  end)

  it("goes with fewer ranks, and not with more, nor with other machines", function()
    local out = explain(0, "--deepspeed_exclusion_filter", "b", "--num_processes", "2")
    messages.matches(explained(out, "num_processes"), "^2 +%-%-num_processes$")
    for _, case in ipairs { { "--num_processes", "6", "--num_processes: 6 ranks, and hosts has room for 4" },
      { "--num_machines", "3", "--num_machines: 3 machines, and hosts has 2" } } do
      local _, err = explain(2, "--deepspeed_exclusion_filter", "b", case[1], case[2])
      has(err, "accel-run: " .. case[3])
    end
  end)

  it("as an option beats the configuration file, and must agree with it inside", function()
    local yaml = "distributed_type: DEEPSPEED\nnum_processes: 1\nnum_machines: 1\nmachine_rank: 0\n" ..
      "deepspeed_config: {zero_stage: 1}\n"
    local words = { "--config_file", "c.yaml", "--deepspeed_exclusion_filter", "b", "--explain" }
    local out = run(0, { "--deepspeed_hostfile", "hosts", unpack(words) }, { ["c.yaml"] = yaml })
    messages.matches(explained(out, "num_machines"), "^2 +%-%-deepspeed_hostfile hosts$")
    messages.matches(explained(out, "num_processes"), "^4 ")
    local _, err = run(2, words, { ["c.yaml"] = yaml:gsub("{zero", "{deepspeed_hostfile: hosts, zero") })
    has(err, "c.yaml:3: num_machines: 1 machines, and hosts has 2")
  end)

  it("that is wrong is named with its line", function()
    for text, message in pairs { ["a slots=2\na slots=1\n"] = "hosts:2: the machine a is there twice",
      ["a slot=2\n"] = "hosts:1: expected NAME slots=N with 1 to 256 ranks, got 'a slot=2'",
      ["a slots=0\n"] = "hosts:1: expected NAME slots=N",
      ["a slots=2 b\n"] = "hosts:1: expected NAME slots=N",
      ["\n# none\n"] = "hosts: expected lines NAME slots=N, there are none",
      ["a slots=1\nb slots=2\n"] = "hosts: a has 1 ranks and b 2; all machines have equally many",
      ["a slots=1\nb slots=1\n"] = "none of the machines has this one's name; give --machine_rank N" } do
      local _, err = run(2, { "--use_deepspeed", "--deepspeed_hostfile", "hosts", "print.lua" },
        { hosts = text })
      has(err, "accel-run: ")
      has(err, message)
    end
    local _, err = run(2, { "--use_deepspeed", "--deepspeed_hostfile", "none.txt", "print.lua" })
    has(err, "cannot read the hostfile none.txt: No such file")
  end)

  it("and wrong filters are named", function()
    for filter, message in pairs { ["x"] = "x: there is no machine 'x' in hosts",
      ["b:4"] = "b:4: expected slots from 0 to 3 of b, got '4'",
      ["b:one"] = "expected slots from 0 to 3 of b",
      ["b:1;2"] = "expected slots from 0 to 3 of b" } do
      local _, err = explain(2, "--deepspeed_inclusion_filter", filter)
      has(err, "accel-run: --deepspeed_inclusion_filter: ")
      has(err, message)
    end
    local _, err = explain(2, "--deepspeed_exclusion_filter", own .. "@b@c")
    has(err, "--deepspeed_exclusion_filter: no machine of hosts is left")
    _, err = explain(2, "--deepspeed_exclusion_filter", "b", "--deepspeed_inclusion_filter", "c")
    has(err, "--deepspeed_inclusion_filter and --deepspeed_exclusion_filter: give one of them")
    _, err = run(2, { "--use_deepspeed", "--deepspeed_exclusion_filter", "b", "print.lua" })
    has(err, "--deepspeed_exclusion_filter needs --deepspeed_hostfile FILE")
  end)

  it("goes to mpirun with openmpi, and launchers that are not ours are refused by name", function()
    local out = explain(0, "--deepspeed_exclusion_filter", "b", "--deepspeed_multinode_launcher", "standard")
    assert.is_not_nil(out)
    for launcher, why in pairs { pdsh = "nothing is started over ssh from here",
      slurm = "start accel-run with srun",
      mpich = "--mpirun_hostfile takes that", mvapich = "--mpirun_hostfile takes that" } do
      local _, err = run(2, { "--use_deepspeed", "--num_machines", "2", "--deepspeed_multinode_launcher",
        launcher,
        "print.lua" })
      has(err, "accel-run: --deepspeed_multinode_launcher: " .. launcher .. " is not there: ")
      has(err, why)
      assert.is_not_nil(
        (run(0, { "--use_deepspeed", "--deepspeed_multinode_launcher", launcher, "print.lua" })))
    end
    local _, err = explain(2, "--deepspeed_exclusion_filter", "b", "--deepspeed_multinode_launcher",
      "openmpi")
    has(err, "openmpi reads the whole hostfile; leave the filters out")
    local words = { "--use_deepspeed", "--deepspeed_hostfile", "hosts", "--deepspeed_multinode_launcher",
      "openmpi",
      "--explain" }
    out = run(0, words, { hosts = "a slots=2\nb slots=2\n" })
    messages.matches(explained(out, "mpirun_hostfile"), "^hosts +%-%-deepspeed_hostfile hosts$")
    messages.matches(explained(out, "num_processes"), "^4 ")
  end)
end)
