-- host/settings/engines.c: the options, variables and keys of FSDP and ParallelismConfig, which
-- have an effect only with their switch and travel to the ranks as Accelerate's variables.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local messages = require "spec.support.messages"

local has = messages.has

local NAMES = { "ACCELERATE_USE_FSDP", "FSDP_VERSION", "FSDP_SHARDING_STRATEGY", "FSDP_RESHARD_AFTER_FORWARD",
  "FSDP_OFFLOAD_PARAMS", "FSDP_MIN_NUM_PARAMS", "FSDP_TRANSFORMER_CLS_TO_WRAP",
  "ACCELERATE_USE_PARALLELISM_CONFIG", "PARALLELISM_CONFIG_DP_SHARD_SIZE" }
local PRINT = (
  "for name in ('%s'):gmatch '%%S+' do print(name .. '=' .. tostring(os.getenv(name))) end"):format(
  table.concat(NAMES, " "))

-- Runs words with a configuration; returns stdout and stderr.
local function run(status, words, text, env)
  local out, err
  host.in_folder(function(folder)
    assert(fs.write(folder .. "/print.lua", PRINT))
    local all = { "--config_file", "c.yaml", unpack(words) }
    if text then assert(fs.write(folder .. "/c.yaml", text)) else all = words end
    local variables = { HF_HOME = folder }
    for name, value in pairs(env or {}) do variables[name] = value end
    local got
    got, out, err = host.run(all, { env = variables, folder = folder })
    assert(got == status, ("status %d, expected %d\nstdout: %s\nstderr: %s"):format(got, status, out, err))
  end)
  return out, err
end

-- What --explain says about a setting.
local function explained(out, name) return out:match("\n" .. name .. " +([^\n]*)\n") end

describe("options of FSDP", function()
  it("travel to the ranks as variables, with Accelerate's defaults", function()
    local out = run(0, { "--use_fsdp", "--fsdp-version=2", "--fsdp_offload_params", "yes",
      "--fsdp_transformer_layer_cls_to_wrap", "A,B", "print.lua" })
    for _, line in ipairs { "ACCELERATE_USE_FSDP=true", "FSDP_VERSION=2", "FSDP_OFFLOAD_PARAMS=true",
      "FSDP_MIN_NUM_PARAMS=100000000", "FSDP_TRANSFORMER_CLS_TO_WRAP=A,B", "FSDP_SHARDING_STRATEGY=nil",
      "FSDP_RESHARD_AFTER_FORWARD=nil", "ACCELERATE_USE_PARALLELISM_CONFIG=nil" } do
      has(out, line .. "\n")
    end
  end)

  it("have no effect without --use_fsdp, which a line says", function()
    local out, err = run(0, { "--fsdp_version", "2", "--parallelism_config_dp_shard_size", "2", "print.lua" })
    has(out, "FSDP_VERSION=nil\n")
    has(err, "accel-run: --fsdp_version has no effect without --use_fsdp\n")
    has(err, "accel-run: --parallelism_config_dp_shard_size has no effect without --use_parallelism_config\n")
  end)

  it("are checked, and name what was expected", function()
    for _, case in ipairs { { "--fsdp_version", "3", "--fsdp_version: expected 1|2, got '3'" },
      { "--fsdp_offload_params", "maybe", "--fsdp_offload_params: expected true or false, got 'maybe'" },
      { "--fsdp_min_num_params", "few", "--fsdp_min_num_params: expected a whole number, got 'few'" },
      { "--fsdp_sync_module_states", "false", "fsdp_cpu_ram_efficient_loading true (default) needs " ..
        "fsdp_sync_module_states true (--fsdp_sync_module_states is false)" },
      { "--num_processes=2", "--multi_gpu", "--multi_gpu and --use_fsdp: give one of them" } } do
      local _, err = run(2, { "--use_fsdp", case[1], case[2], "print.lua" })
      has(err, "accel-run: " .. case[3])
    end
  end)

  it("go with --cpu, for ranks on CPUs cut models, too", function()
    has(run(0, { "--cpu", "--use_fsdp", "print.lua" }), "ACCELERATE_USE_FSDP=true\n")
  end)

  it("stand in the help under their switch", function()
    local out = run(0, { "--help" })
    messages.matches(out, "\n with %-%-use_fsdp\n  %-%-fsdp_version 1|2\n")
    messages.matches(out,
      "\n with %-%-use_parallelism_config\n  %-%-parallelism_config_dp_replicate_size N\n")
  end)
end)

describe("variables of FSDP", function()
  it("lose against options, and are shown with their name", function()
    local env = { ACCELERATE_USE_FSDP = "1", FSDP_VERSION = "2", FSDP_MIN_NUM_PARAMS = "5" }
    local out = run(0, { "--fsdp_version", "1", "--explain" }, nil, env)
    assert.are.equal("1        --fsdp_version", explained(out, "fsdp_version"))
    assert.are.equal("5        environment variable FSDP_MIN_NUM_PARAMS",
      explained(out, "fsdp_min_num_params"))
    assert.are.equal("true     environment variable ACCELERATE_USE_FSDP", explained(out, "use_fsdp"))
  end)

  it("are checked where FSDP is on, and may hold anything elsewhere", function()
    local env = { FSDP_VERSION = "latest" }
    local _, err = run(2, { "--use_fsdp", "print.lua" }, nil, env)
    has(err, "accel-run: environment variable FSDP_VERSION: expected 1|2, got 'latest'")
    has(run(0, { "print.lua" }, nil, env), "FSDP_VERSION=latest\n")
  end)

  it("that are misspelt are named", function()
    local _, err = run(0, { "print.lua" }, nil,
      { FSDP_SHARDING_STRATEGIE = "1", PARALLELISM_CONFIG_TP_SIZES = "1" })
    has(err, "environment variable FSDP_SHARDING_STRATEGIE is not known and has no effect; the nearest is " ..
      "FSDP_SHARDING_STRATEGY\n")
    has(err, "the nearest is PARALLELISM_CONFIG_TP_SIZE\n")
  end)
end)

local FSDP = "distributed_type: FSDP\nnum_processes: 1\nfsdp_config:\n"

describe("a configuration with FSDP", function()
  it("chooses it, with keys that may leave their prefix out", function()
    local text = FSDP .. "  fsdp_version: 2\n  fsdp_reshard_after_forward: no\n  offload_params: True\n" ..
      "  min_num_params: 2000\n  fsdp_transformer_layer_cls_to_wrap: GPT2Block\n"
    local out, err = run(0, { "print.lua" }, text)
    for _, line in ipairs { "ACCELERATE_USE_FSDP=true", "FSDP_VERSION=2", "FSDP_RESHARD_AFTER_FORWARD=false",
      "FSDP_OFFLOAD_PARAMS=true", "FSDP_MIN_NUM_PARAMS=2000", "FSDP_TRANSFORMER_CLS_TO_WRAP=GPT2Block" } do
      has(out, line .. "\n")
    end
    assert.are.equal("", err)
    out = run(0, { "--explain" }, text)
    assert.are.equal("true     c.yaml:1: distributed_type", explained(out, "use_fsdp"))
    assert.are.equal("2000     c.yaml:7: min_num_params", explained(out, "fsdp_min_num_params"))
  end)

  it("keeps a strategy that stands under reshard_after_forward", function()
    has(run(0, { "print.lua" }, FSDP .. "  fsdp_reshard_after_forward: SHARD_GRAD_OP\n"),
      "FSDP_RESHARD_AFTER_FORWARD=SHARD_GRAD_OP\n")
  end)

  it("takes every key that a version of Accelerate has written", function()
    local values = { sharding_strategy = 2, offload_params = false, min_num_params = 1,
      transformer_layer_cls_to_wrap = "A", auto_wrap_policy = "SIZE_BASED_WRAP",
      state_dict_type = "FULL_STATE_DICT",
      backward_prefetch_policy = "BACKWARD_PRE", backward_prefetch = "NO_PREFETCH", forward_prefetch = false,
      use_orig_params = true, sync_module_states = true, cpu_ram_efficient_loading = true, version = 1,
      activation_checkpointing = false, activation_checkpointing_offload = false, ignored_modules = "a.*",
      reshard_after_forward = "FULL_SHARD" }
    for key, value in pairs(values) do
      for _, prefix in ipairs { "", "fsdp_" } do
        local _, err = run(0, { "print.lua" }, ("%s  %s%s: %s\n"):format(FSDP, prefix, key, tostring(value)))
        assert.are.equal("", err)
      end
    end
  end)

  it("loses against options and variables", function()
    local text = FSDP .. "  fsdp_version: 2\n  min_num_params: 2000\n"
    local out = run(0, { "--fsdp_version", "1", "print.lua" }, text, { FSDP_MIN_NUM_PARAMS = "7" })
    has(out, "FSDP_VERSION=1\n")
    has(out, "FSDP_MIN_NUM_PARAMS=7\n")
  end)

  it("names wrong values and keys with their line", function()
    local _, err = run(2, { "print.lua" }, FSDP .. "  fsdp_auto_wrap_policy: TRANSFORMER\n")
    has(err, "c.yaml:4: fsdp_auto_wrap_policy: expected TRANSFORMER_BASED_WRAP|SIZE_BASED_WRAP|NO_WRAP, " ..
      "got 'TRANSFORMER'")
    _, err = run(2, { "print.lua" }, "distributed_type: FSDP\nnum_processes: 1\nfsdp_config: FULL_SHARD\n")
    has(err, "c.yaml:3: fsdp_config: expected keys with values")
    _, err = run(0, { "print.lua" }, FSDP .. "  fsdp_shards: 2\n")
    has(err, "c.yaml:4: fsdp_config: the key fsdp_shards is not known, and has no effect\n")
    _, err = run(2, { "print.lua" }, "distributed_type: 'NO'\nfsdp_version: 2\n")
    has(err, "line 2: fsdp_version")
  end)

  it("is left alone where nothing chooses FSDP", function()
    local out, err = run(0, { "print.lua" }, "distributed_type: 'NO'\nfsdp_config:\n  whatever: 1\n")
    has(out, "ACCELERATE_USE_FSDP=nil\n")
    assert.are.equal("", err)
    has(run(0, { "--use_fsdp", "print.lua" }, "distributed_type: 'NO'\nfsdp_config:\n  fsdp_version: 2\n"),
      "FSDP_VERSION=2\n")
  end)
end)

describe("a parallelism config", function()
  it("of a configuration is used, and its sizes are passed on", function()
    local out, err = run(0, { "print.lua" }, "distributed_type: MULTI_CPU\nnum_processes: 2\n" ..
      "parallelism_config:\n  parallelism_config_dp_shard_size: 2\n  dp_replicate_size: 1\n" ..
      "  cp_backend: torch\n")
    has(out, "ACCELERATE_USE_PARALLELISM_CONFIG=true\n")
    has(out, "PARALLELISM_CONFIG_DP_SHARD_SIZE=2\n")
    assert.are.equal("", err)
    has(run(0, { "print.lua" }, "distributed_type: MULTI_CPU\nnum_processes: 2\nparallelism_config: {}\n"),
      "ACCELERATE_USE_PARALLELISM_CONFIG=nil\n")
  end)

  it("as an option needs FSDP2", function()
    local _, err = run(2, { "--use_parallelism_config", "print.lua" })
    has(err, "--use_parallelism_config needs --use_fsdp, with --fsdp_version 2\n")
    _, err = run(2, { "--use_parallelism_config", "--use_fsdp", "print.lua" })
    has(err, "--use_parallelism_config needs --fsdp_version 2; it is 1 (default)\n")
  end)

  it("refuses dims that are not there, with their place", function()
    for dim, what in pairs { tp = "2", cp = "4", sp = "2" } do
      local _, err = run(2, { "print.lua" }, ("distributed_type: MULTI_CPU\nnum_processes: 4\n" ..
        "parallelism_config:\n  %s_size: %s\n"):format(dim, what))
      has(err, ("c.yaml:4: %s_size: %s: tensor, context and sequence parallelism are not there yet"):format(
        dim, what))
    end
    local _, err = run(2, { "--use_fsdp", "--fsdp_version=2", "--use_parallelism_config",
      "--parallelism_config_tp_size", "2", "print.lua" })
    has(err, "--parallelism_config_tp_size: 2: tensor, context and sequence parallelism are not there yet")
  end)
end)

describe("where a setting came from", function()
  it("is known to the ranks", function()
    host.in_folder(function(folder)
      assert(fs.write(folder .. "/x.lua", [[
        local plugin = require("accelerate").FullyShardedDataParallelPlugin()
        for field in ("fsdp_version min_num_params auto_wrap_policy state_dict_type " ..
          "cpu_offload"):gmatch "%S+" do
          print(field .. ": " .. plugin:_origin(field))
        end]]))
      assert(fs.write(folder .. "/c.yaml", FSDP ..
        "  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n  min_num_params: 9\n"))
      local _, out = host.run({ "--config_file", "c.yaml", "--fsdp_version", "2", "x.lua" },
        { folder = folder, env = { FSDP_STATE_DICT_TYPE = "FULL_STATE_DICT" } })
      assert.are.equal("fsdp_version: --fsdp_version\nmin_num_params: c.yaml:5: min_num_params\n" ..
        "auto_wrap_policy: c.yaml:4: fsdp_auto_wrap_policy\nstate_dict_type: FSDP_STATE_DICT_TYPE\n" ..
        "cpu_offload: default\n", out)
    end)
  end)
end)
