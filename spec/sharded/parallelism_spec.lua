-- ParallelismConfig: lua/accelerate/config/parallelism.lua, and the mesh that an Accelerator makes.
local accelerate = require "accelerate"
local env = require "accelerate.utils.environment"
local host = require "spec.support.host"
local messages = require "spec.support.messages"
local notice = require "accelerate.messages.notice"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"

local Config = accelerate.ParallelismConfig
local raises = messages.raises

local function config(given, variables)
  return env.clear_environment(function()
    return env.patch_environment(variables or {}, function() return Config(given) end)
  end)
end

describe("ParallelismConfig", function()
  it("has one rank along each dim by default", function()
    local c = config()
    for _, dim in ipairs { "dp_replicate", "dp_shard", "tp", "cp", "sp" } do
      assert.are.equal(1, c[dim .. "_size"])
      assert.is_false(c[dim .. "_enabled"])
    end
    assert.are.same({}, c.active_mesh_dims)
    assert.are.same({ "dp_shard_cp" }, c.fsdp_dim_names)
    assert.are.equal("torch", c.cp_backend)
    assert.are.equal("deepspeed", c.sp_backend)
  end)

  it("says what follows from the sizes", function()
    local c = config { dp_replicate_size = 2, dp_shard_size = 3 }
    assert.are.same({ 6, 6, 1 }, { c.total_size, c.data_parallel_size, c.non_data_parallel_size })
    assert.are.same({ "dp_replicate", "dp_shard" }, c.dp_dim_names)
    assert.are.same({}, c.non_dp_dim_names)
    assert.are.same({ "dp_replicate", "dp_shard" }, c.dp_cp_dim_names)
    assert.are.same({ "dp_shard" }, c.dp_shard_cp_dim_names)
    assert.are.same({ "dp_replicate", "dp_shard_cp" }, c.fsdp_dim_names)
    assert.are.same({ "dp_replicate", "dp_shard" }, c.active_mesh_dims)
  end)

  it("takes sizes from PARALLELISM_CONFIG_ variables", function()
    local c = config({ dp_replicate_size = 3 },
      { PARALLELISM_CONFIG_DP_SHARD_SIZE = "4", PARALLELISM_CONFIG_DP_REPLICATE_SIZE = "2" })
    assert.are.same({ 3, 4 }, { c.dp_replicate_size, c.dp_shard_size })
    raises("PARALLELISM_CONFIG_DP_SHARD_SIZE must be an integer, got 'four'", config, nil,
      { PARALLELISM_CONFIG_DP_SHARD_SIZE = "four" })
  end)

  it("refuses what does not go together", function()
    raises("option 'dp_shard_size' must be at least 1, got 0", config, { dp_shard_size = 0 })
    raises("cp_size = 2 and sp_size = 2: context and sequence parallelism exclude each other", config,
      { cp_size = 2, sp_size = 2 })
    raises("do not go with copies alone (dp_replicate_size = 2, dp_shard_size = 1)",
      config, { tp_size = 2, dp_replicate_size = 2 })
    raises("option 'cp_backend' must be one of torch, got 'deepspeed'", config, { cp_backend = "deepspeed" })
    raises("unknown option 'dp_shards_size'; did you mean 'dp_shard_size'?", config, { dp_shards_size = 2 })
  end)

  it("refuses by name what is not there yet", function()
    for dim, what in pairs { tp = "tensor", cp = "context", sp = "sequence" } do
      local where = ("%s_size = 2 (parallelism_config.%s_size)"):format(dim, dim)
      raises(("%s: %s parallelism is not there yet; leave it at 1"):format(where, what), config,
        { [dim .. "_size"] = 2 })
      raises(("(PARALLELISM_CONFIG_%s_SIZE)"):format(dim:upper()), config, nil,
        { ["PARALLELISM_CONFIG_" .. dim:upper() .. "_SIZE"] = "2" })
    end
  end)

  it("says that a handler has no effect", function()
    notice.reset()
    messages.has(messages.said(config, { tp_handler = {} }), "tp_handler has no effect while tp_size is 1")
  end)
end)

describe("an Accelerator with parallelism_config", function()
  after_each(function()
    state.reset()
    env.set("ACCELERATE_USE_PARALLELISM_CONFIG", nil)
    env.set("ACCELERATE_USE_FSDP", nil)
  end)

  it("gives each rank its place in the mesh", function()
    ranks.ok(4, [[
      local a = accelerate.Accelerator {
        parallelism_config = accelerate.ParallelismConfig { dp_replicate_size = 2, dp_shard_size = 2 } }
      local mesh = a.torch_device_mesh
      check(a.data_parallel_rank == math.floor(rank / 2) and a.data_parallel_shard_rank == rank % 2)
      check(a.tensor_parallel_rank == 0 and a.state.device_mesh == mesh and a.should_save_model)
      check(mesh.dp_shard.mesh[1] == rank - rank % 2 and mesh.dp_shard.mesh[2] == rank - rank % 2 + 1)
      check(mesh.dp_replicate.mesh[1] == rank % 2 and #mesh.dp.mesh == 4)
      check(table.concat(mesh.dp_shard_cp.mesh) == table.concat(mesh.dp_shard.mesh))
      check(a.parallelism_config.total_size == 4 and a.distributed_type == "MULTI_CPU")
      check(a._plan.name == "HYBRID_SHARD" and a._plan.replicate == 2 and a._plan.shard == 2)
    ]])
  end)

  it("makes copies of all ranks when no size is given", function()
    ranks.ok(2, [[
      local a = accelerate.Accelerator { parallelism_config = {} }
      check(a.parallelism_config.dp_replicate_size == 2 and a._plan == nil and a.data_parallel_rank == rank)
    ]])
  end)

  it("checks the sizes against the run", function()
    raises("ParallelismConfig: the sizes multiply to 2, and the run has 1 rank;", accelerate.Accelerator,
      { parallelism_config = { dp_shard_size = 2 } })
    local function refused(given, text)
      local status, _, err = ranks.run(2, ("accelerate.Accelerator { %s }"):format(given))
      assert.are.equal(1, status)
      messages.has(err, text)
    end
    refused("fsdp_plugin = {}, parallelism_config = { dp_shard_size = 2 }",
      "ParallelismConfig: it goes with FSDP2")
    refused("fsdp_plugin = { fsdp_version = 2 }, parallelism_config = { dp_replicate_size = 2 }",
      "FSDP has no dim to cut over: dp_shard_size is 1 (default)")
  end)

  it("needs a config for the places", function()
    local a = accelerate.Accelerator()
    for _, name in ipairs { "tensor_parallel_rank", "data_parallel_rank", "data_parallel_shard_rank" } do
      assert.error_matches(function() return a[name] end,
        name .. ": .* parallelism is not configured: give the Accelerator a parallelism_config")
    end
    for _, name in ipairs { "pipeline_parallel_rank", "context_parallel_rank" } do
      assert.error_matches(function() return a[name] end, name .. ": .* parallelism is not there yet")
    end
  end)
end)

describe("a rank that does not come to a unit's gather", function()
  it("is named by the others, with their group and line, and so is each rank in the table", function()
    local status, _, err = ranks.run(4, [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local a = accelerate.Accelerator { fsdp_plugin = { fsdp_version = 2, auto_wrap_policy = "NO_WRAP" },
        parallelism_config = { dp_replicate_size = 2, dp_shard_size = 2 } }
      local model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
      local optimizer
      model, optimizer = a:prepare(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
      while rank == 3 do os.time() end
      model(core.randn(2, 8))
    ]], { launch = { "--cpu", "--timeout", host.limit(1) }, env = { ACCEL_SHARED_PARAMETERS = "0" } })
    assert.are.equal(1, status)
    local line = "[^\n]*script.lua:%d+"
    assert.matches("rank 2 of 4 failed: " .. line ..
      ": gather: waited [%d.]+ s in dp_shard%[2,3%] for rank 3",
      err)
    assert.matches("rank 0   [^\n]*all_gather%(float32, %d+ elements%) in dp_shard%[0,1%] at " .. line, err)
  end)
end)
