-- Models that no rank ever has whole: lua/accelerate/deferred, parallel/sharded/values.lua.
local host = require "spec.support.host"
local ranks = require "spec.support.ranks"

local FSDP = [[{ cpu = true, fsdp_plugin = { cpu_ram_efficient_loading = true,
  sync_module_states = true, auto_wrap_policy = "SIZE_BASED_WRAP", min_num_params = 300 } }]]

-- makers: small models by name. reference(name): what rank 0 has after seeding, on all ranks, and
-- the draw behind it. same(model, values): every parameter has these bits.
local MODELS = [[
  local nn, models, optim, utils = accelerate.nn, accelerate.models, accelerate.optim, accelerate.utils
  local deferred = require "accelerate.deferred"
  local makers = {}
  function makers.gpt()
    return models.GPT2LMHeadModel { vocab_size = 61, n_positions = 16, n_embd = 24, n_layer = 2, n_head = 2 }
  end
  function makers.bert()
    return models.BertForSequenceClassification { vocab_size = 61, hidden_size = 24, num_hidden_layers = 2,
      num_attention_heads = 2, intermediate_size = 48, max_position_embeddings = 16 }
  end
  function makers.resnet()
    return models.ResNetForImageClassification { embedding_size = 8, hidden_sizes = { 8, 16 },
      depths = { 1, 1 }, num_labels = 5, layer_type = "basic" }
  end
  function makers.t5()
    return models.T5ForConditionalGeneration { vocab_size = 61, d_model = 24, d_kv = 12, d_ff = 48,
      num_layers = 2, num_heads = 2 }
  end
  function makers.layers()
    local m = nn.Sequential(nn.Linear(7, 13), nn.Embedding(17, 9, { padding_idx = 2 }), nn.Conv2d(3, 5, 3),
      nn.LSTM(6, 5), nn.MultiheadAttention(6, 2), nn.BatchNorm2d(6), nn.Bilinear(3, 4, 5), nn.Linear(8, 8))
    m[8].weight = nn.Parameter(core.randn(8, 8))
    nn.init.orthogonal_(m[1].weight)
    nn.init.trunc_normal_(m[3].weight, 0, 0.02)
    nn.init.sparse_(m[4].weight_ih_l0, 0.3)
    return m
  end
  function makers.script() -- what scripts do in constructors
    local m = nn.Sequential(nn.Linear(7, 13), nn.Embedding(17, 9), nn.Linear(6, 20), nn.Linear(5, 5))
    core.no_grad(function()
      m[1].weight:normal_(0, 0.02):mul_(2)
      m[1].bias:uniform_(-1, 1):clamp_({ min = 0 })
      m[2].weight[3] = 0.25
      m[2].weight:select(1, 5):zero_()
      m[3].weight:t():mul_(core.arange(20))
      m[3].bias:exponential_()
      m[4].weight:copy_(core.eye(5))
      m[4].bias:narrow(1, 2, 3):fill_(7)
    end)
    return m
  end
  local function reference(name, seed)
    core.manual_seed(seed)
    local values = {}
    for key, p in makers[name]():named_parameters() do
      values[key] = p:detach():clone()
      core.dist.broadcast(values[key], 0)
    end
    return values, core.rand(1):item()
  end
  local function same(model, values, what)
    utils.summon_full_params(model, function()
      for key, p in model:named_parameters() do
        check(accelerate.tensor.equal(p:detach(), values[key]), what .. ": " .. key .. " differs")
      end
    end)
  end
  local function efficient() return accelerate.Accelerator(]] .. FSDP .. [[) end
  local function count(model)
    local there, without = 0, 0
    for _, p in ipairs(model:parameters()) do
      if deferred.of(p) then without = without + 1 else there = there + 1 end
    end
    return there, without
  end
]]

-- `make` makes the Accelerator; meta: whether models are made in init_empty_weights. Ranks have
-- seeds of their own: rank 0's count.
local function start(make, meta, after)
  return MODELS .. [[
    local wanted, draw = {}, {}
    local names = { "gpt", "bert", "resnet", "t5", "layers", "script" }
    for _, name in ipairs(names) do wanted[name], draw[name] = reference(name, 5 + rank) end
    local a = accelerate.Accelerator(]] .. make .. [[)
    for _, name in ipairs(names) do
      core.manual_seed(5 + rank)
      local model = ]] .. (meta and "accelerate.init_empty_weights(makers[name])" or "makers[name]()") .. [[

      check(core.rand(1):item() == draw[name], name .. ": the next draw differs")
      local there, without = count(model)
      check(without > there * 10, ("%s: %d parameters have memory"):format(name, there))
      same(a:prepare_model(model), wanted[name], name)
    end
  ]] .. (after or "")
end

describe("models that begin without memory", function()
  for _, n in ipairs { 2, 3, 4 } do
    it(("have the bits of a whole start under FSDP on %d ranks"):format(n), function()
      ranks.ok(n, start(FSDP))
    end)
  end

  it("have them under zero3_init_flag, also from init_empty_weights", function()
    ranks.ok(3, start [[{ cpu = true, deepspeed_plugin = {
      hf_ds_config = { train_micro_batch_size_per_gpu = 1, zero_optimization = { stage = 3 } } } }]])
    ranks.ok(2, start("{ cpu = true, fsdp_plugin = { fsdp_version = 2 } }", true))
  end)

  it("have them where values are gathered, in copies, and under plans that keep them whole", function()
    ranks.ok(3, start(FSDP), { env = { ACCEL_SHARED_PARAMETERS = "0" } })
    ranks.ok(4, start([[{ cpu = true, fsdp_plugin = { fsdp_version = 2, cpu_ram_efficient_loading = true },
      parallelism_config = { dp_replicate_size = 2, dp_shard_size = 2 } }]]))
    ranks.ok(2, start("{ cpu = true, fsdp_plugin = { sharding_strategy = 'NO_SHARD' } }", true))
    ranks.ok(2, start("{ cpu = true, fsdp_plugin = { sharding_strategy = 'SHARD_GRAD_OP' } }", true))
    ranks.ok(2, start("{ cpu = true }", true))
  end)

  it("stay ordinary models without such a setting, and on one rank", function()
    ranks.ok(2, MODELS .. [[
      accelerate.Accelerator { cpu = true, fsdp_plugin = {} }
      check(select(2, count(makers.gpt())) == 0)
    ]])
    ranks.ok(1, MODELS .. [[
      local a = efficient()
      check(select(2, count(makers.gpt())) == 0)
      local wanted = reference("bert", 3)
      core.manual_seed(3)
      same(a:prepare(accelerate.init_empty_weights(makers.bert)), wanted, "bert")
    ]])
  end)

  it("are there for whoever uses them before prepare", function()
    ranks.ok(2, MODELS .. [[
      local wanted = reference("bert", 3)
      local a = efficient()
      core.manual_seed(3)
      local model = makers.bert()
      local name, p = next(wanted), nil
      for key, value in model:named_parameters() do p = key == name and value or p end
      check(accelerate.tensor.equal(p:detach(), wanted[name]))
      local copy = model:clone()
      check(select(2, count(copy)) == select(2, count(model)))
      local ids = core.randint(0, 61, { 2, 5 })
      check(accelerate.tensor.equal(copy:eval()(ids).logits, model:eval()(ids).logits))
      check(select(2, count(model:double())) == 0)
      core.manual_seed(3)
      local half = makers.bert():to "bfloat16"
      check(select(2, count(half)) > 0)
      check(accelerate.tensor.equal(half:state_dict()[name], wanted[name]:bfloat16()))
    ]])
  end)

  it("train as a whole start does, and keep ignored modules whole", function()
    ranks.ok(3, MODELS .. [[
      local plugin = { cpu_ram_efficient_loading = false, auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
        ignored_modules = "transformer.ln_f" }
      local function train()
        core.manual_seed(11)
        local a = accelerate.Accelerator { cpu = true, fsdp_plugin = plugin }
        local model, optimizer = makers.gpt(), nil
        local _, without = count(model)
        model, optimizer = a:prepare(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
        for _ = 1, 3 do
          local ids = core.randint(0, 61, { 4, 8 })
          a:backward(model(ids, { labels = ids }).loss)
          optimizer:step()
          optimizer:zero_grad()
        end
        local values = {}
        utils.summon_full_params(model, function()
          for key, p in model:named_parameters() do values[key] = p:detach():clone() end
        end)
        return values, without
      end
      local wanted, none = train()
      require("accelerate.state").AcceleratorState._reset_state()
      plugin = { cpu_ram_efficient_loading = true, auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
        ignored_modules = "transformer.ln_f" }
      local got, all = train()
      check(none == 0 and all == 28, ("%d, %d"):format(none, all))
      for key, value in pairs(wanted) do check(accelerate.tensor.equal(value, got[key]), key) end
    ]])
  end)
end)

describe("weights of files", function()
  local LOAD = MODELS .. [[
    local folder, wanted, dict = arg[1], nil, nil
    local function written(opts)
      core.manual_seed(3)
      local model = makers.gpt()
      if opts.dtype then model:to(opts.dtype) end
      if rank == 0 then model:save_pretrained(folder, opts.save) end
      core.dist.barrier()
      wanted, dict = {}, model:state_dict()
      for key, p in model:named_parameters() do wanted[key] = p:detach():to(opts.as or "float32") end
    end
  ]]
  local function load(n, script)
    host.in_folder(function(folder) ranks.ok(n, LOAD .. script, { arguments = { folder } }) end)
  end

  it("are read part by part by from_pretrained, from an index of safetensors files", function()
    for n = 2, 4 do
      load(n, [[
        written { save = { max_shard_size = 5000 } }
        local a = efficient()
        local model = models.from_pretrained(folder)
        check(select(2, count(model)) == 28)
        same(a:prepare(model), wanted, "from_pretrained")
      ]])
    end
  end)

  it("are converted, also where a file has the matrix the other way round", function()
    load(3, [[
      written { dtype = "bfloat16", save = {} }
      local a = efficient()
      same(a:prepare(models.from_pretrained(folder, { dtype = "float32" })), wanted, "float32")
    ]])
    load(2, [[
      written { save = {}, as = "float16" }
      local a = efficient()
      local model = models.from_pretrained(folder, { dtype = "float16" })
      check(select(2, count(model)) == 28 and model.dtype == "float16")
      same(a:prepare(model), wanted, "float16")
    ]])
  end)

  it("are read part by part from PyTorch's files, whose checksums count", function()
    load(3, [[
      written { save = { safe_serialization = false } }
      local a = efficient()
      local model = models.from_pretrained(folder)
      check(select(2, count(model)) == 28)
      same(a:prepare(model), wanted, "from_pretrained")
      core.dist.barrier()
      if rank == 0 then
        local path = folder .. "/pytorch_model.bin"
        local f = assert(io.open(path, "r+b"))
        f:seek("set", f:seek "end" / 2)
        f:write "damaged!"
        f:close()
        local ok, why = pcall(models.from_pretrained, folder)
        check(not ok and why:find "checksum", tostring(why))
      end
    ]])
  end)

  it("draw what the files lack as a whole start does", function()
    load(2, [[
      written { save = {} }
      core.manual_seed(7)
      local whole = models.GPT2ForSequenceClassification.from_pretrained(folder, { num_labels = 3 })
      local values = {}
      for key, p in whole:named_parameters() do values[key] = p:detach():clone() end
      local a = efficient()
      core.manual_seed(7)
      local model = models.GPT2ForSequenceClassification.from_pretrained(folder, { num_labels = 3 })
      check(select(1, count(model)) == 0)
      same(a:prepare(model), values, "classification")
    ]])
  end)

  it("are noted by load_checkpoint_in_model, and read into what is cut", function()
    load(3, [[
      written { save = { max_shard_size = 5000 } }
      local a = efficient()
      local model = makers.gpt()
      accelerate.load_checkpoint_in_model(model, folder)
      check(select(2, count(model)) == 28)
      same(a:prepare(model), wanted, "before")
      local after = a:prepare(makers.gpt())
      accelerate.load_checkpoint_in_model(after, folder)
      same(after, wanted, "after")
      local meta = accelerate.init_empty_weights(makers.gpt)
      accelerate.load_checkpoint_in_model(meta, folder)
      same(a:prepare(meta), wanted, "meta")
      core.no_grad(function() after.transformer.ln_f.weight:zero_() end)
      after:load_state_dict(dict)
      same(after, wanted, "load_state_dict")
    ]])
  end)

  it("go back to their file when pieces of it cannot be read", function()
    load(2, [[
      written { save = {} }
      local a = efficient()
      local model = models.from_pretrained(folder)
      core.dist.barrier()
      if rank == 0 then
        local ffi = require "ffi"
        ffi.cdef "int truncate(const char *path, long size);"
        check(ffi.C.truncate(folder .. "/model.safetensors", 4200) == 0)
      end
      core.dist.barrier()
      local function is_refused(fn, ...)
        local ok, why = pcall(fn, ...)
        check(not ok and why:find "can no longer be read", tostring(why))
      end
      is_refused(a.prepare, a, model)
      is_refused(model, core.tensor({ { 1, 2 } }, { dtype = "int64" }))
    ]])
  end)

  it("are saved from where they are, each on its own", function()
    host.in_folder(function(folder)
      ranks.ok(2, MODELS .. [[
        efficient()
        core.manual_seed(3)
        local model = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40), nn.Linear(40, 40))
        model[3].weight = model[1].weight
        local there, without = count(model)
        check(there == 0 and without == 5, there .. " " .. without)
        local path = arg[1] .. "/model.safetensors"
        utils.save(model:state_dict(), path, { safe_serialization = true })
        core.dist.barrier()
        local loaded = require("accelerate.files").load(path)
        for key, p in model:named_parameters() do
          check(accelerate.tensor.equal(loaded[key], p:detach()), key .. " differs")
        end
        check(not accelerate.tensor.equal(loaded["0.weight"], loaded["1.weight"]))
      ]], { arguments = { folder } })
    end)
  end)
end)

describe("the memory of a rank", function()
  local PRIVATE = [[
    local own_memory = require "spec.support.own_memory"
    local function private() return own_memory.private() / 2 ^ 20 end
    local function large()
      return models.GPT2LMHeadModel { vocab_size = 8000, n_positions = 64, n_embd = 512, n_layer = 6,
        n_head = 8 }
    end
    local MB = 94
    local function settings(efficient)
      return { cpu = true, fsdp_plugin = { cpu_ram_efficient_loading = efficient,
        auto_wrap_policy = "TRANSFORMER_BASED_WRAP" } }
    end
  ]]

  it("holds its parts alone when a model is drawn, and when it is read", function()
    host.in_folder(function(folder)
      ranks.ok(4, MODELS .. PRIVATE .. [[
        if rank == 0 then large():save_pretrained(arg[1]) end
        core.dist.barrier()
        collectgarbage() collectgarbage()
        local a, before = accelerate.Accelerator(settings(true)), private()
        local live = utils.memory_stats().live_bytes
        utils.reset_peak_memory_stats()
        local drawn = a:prepare(large())
        check(private() - before < MB / 2, ("drawn: %.0f MB"):format(private() - before))
        local peak = (utils.memory_stats().peak_bytes - live) / 1e6
        check(peak < 0.75 * MB, ("drawn: a peak of %.0f MB"):format(peak))
        a:free_memory(drawn)
        drawn = nil
        collectgarbage() collectgarbage()
        before = private()
        local read = a:prepare(models.from_pretrained(arg[1]))
        check(private() - before < MB / 2, ("read: %.0f MB"):format(private() - before))
      ]], { arguments = { folder } })
    end)
  end)
end)

describe("a model whose training state is three times a rank's limit", function()
  -- Private memory that may be written is limited on each rank: 207 MB, for 622 MB of float32
  -- values, gradients and states.
  local TRAIN = MODELS .. [[
    local ffi = require "ffi"
    ffi.cdef "struct limit { unsigned long soft, hard; }; int setrlimit(int what, const struct limit *l);"
    local RLIMIT_DATA, LIMIT = 2, 16 * 38.9e6 / 3
    assert(ffi.C.setrlimit(RLIMIT_DATA, ffi.new("struct limit", { LIMIT, LIMIT })) == 0)
    local a = accelerate.Accelerator { cpu = true, fsdp_plugin = { auto_wrap_policy =
      "TRANSFORMER_BASED_WRAP", cpu_ram_efficient_loading = EFFICIENT } }
    core.manual_seed(1)
    local model, optimizer = models.GPT2LMHeadModel { vocab_size = 2000, n_positions = 32, n_embd = 512,
      n_layer = 12, n_head = 8 }, nil
    local n = 0
    for _, p in ipairs(model:parameters()) do n = n + p:numel() end
    check(16 * n > 3 * LIMIT - 1e7)
    model, optimizer = a:prepare(model, optim.AdamW(model:parameters(), { lr = 1e-3 }))
    local ids, first, last = core.arange(8):reshape(1, 8), nil, nil
    for _ = 1, 3 do
      local loss = model(ids, { labels = ids }).loss
      a:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
      first, last = first or loss:item(), loss:item()
    end
    check(last < 0.6 * first)
  ]]

  it("trains on four ranks, and does not where each makes the whole model", function()
    if host.path:find("[at]san") then return pending("a sanitizer's own memory is above the limit") end
    ranks.ok(4, (TRAIN:gsub("EFFICIENT", "true")))
    assert.are_not.equal(0, (ranks.run(4, (TRAIN:gsub("EFFICIENT", "false")))))
  end)
end)

describe("what cannot be made", function()
  it("is named", function()
    ranks.ok(2, MODELS .. [[
      local a = efficient()
      local function raises(text, fn, ...)
        local ok, why = pcall(fn, ...)
        check(not ok and tostring(why):find(text, 1, true), tostring(why))
      end
      local Known = nn.class "Known"
      function Known:init() self.w = nn.Parameter(core.empty({ 3 }, { device = "meta" })) end
      raises("prepare_model: 'w' is on the device \"meta\", and nothing says what its values are", function()
        a:prepare(Known())
      end)
      local Large = nn.class "Large"
      function Large:init() self.w = nn.Parameter(core.randn(600, 600)) end
      local model = accelerate.init_empty_weights(Large)
      raises("prepare_model: 'w' is on the device \"meta\", and it was made from a tensor of shape " ..
        "[600, 600], which is not kept", function() a:prepare(model) end)
      core.no_grad(model.w.normal_, model.w) -- now it is known
      a:prepare(model)
      raises("'w' is on the device \"meta\", which holds no values; pass assign = true", function()
        accelerate.init_empty_weights(Large):load_state_dict { w = core.ones(600, 600) }
      end)
    ]])
  end)
end)
