-- Every key of DeepSpeed's JSON (generators/gen_deepspeed_keys.py) is done, refused by name, or
-- without effect for a reason that a line gives.
local keys = require "accelerate.config.deepspeed.keys"
local hf_config = require "accelerate.config.deepspeed.hf_config"
local check = require "accelerate.config.deepspeed.check"

-- A configuration that has one key.
local function config_of(path, value)
  local config = {}
  local node = config
  for part in path:gmatch "([^.]*)%." do
    node[part] = {}
    node = node[part]
  end
  node[path:match "[^.]*$"] = value
  return hf_config.HfDeepSpeedConfig(config)
end

-- Values that fit a type.
local FITTING = { count = { 1, 7 }, size = { 0, 7 }, stage = { 0, 3 }, least0 = { 0, 2.5 },
  number = { -1, 1, 0.25 }, boolean = { true, false }, text = { "mean", "some" }, list = { { "a" }, {} },
  open = { { a = 1 } }, map = { { a = 1 }, {} }, any = { 1, "some" }, device = { "none", "cpu", "nvme" },
  dtype = { "fp32", "fp16", "bf16" } }
-- One that does not.
local UNFIT = { count = 0, size = -1, stage = 4, least0 = -1, number = "1", boolean = 1, map = 3, text = 1,
  list = "a",
  device = "gpu", dtype = "fp8" }

local function each(use, fn)
  for path, entry in pairs(keys.all) do
    if entry.use == use and entry.kind ~= "block" then fn(path, entry) end
  end
end

describe("a key of DeepSpeed's JSON", function()
  it("is in the table if the documentation or the package has it", function()
    local missing = {}
    for key in io.lines "spec/reference/deepspeed_keys.txt" do
      local node, found = key, keys.all[key] ~= nil or keys.maps[key]
      while not found and node:find "%." do
        local inside = node:match "[^.]*$"
        node = node:match "^(.*)%."
        local entry = keys.all[node]
        found = entry
          and (entry.kind == "open" or require("accelerate.utils.lists").set(entry.keys or {})[inside])
      end
      if not found then missing[#missing + 1] = key end
    end
    assert.are.same({}, missing)
  end)

  it("that is done takes every value of its type, without a word", function()
    each("done", function(path, entry)
      for _, value in ipairs(FITTING[entry.kind]) do
        local problems, idle = check.walk(config_of(path, value))
        assert.are.same({}, problems, path)
        assert.are.same({}, idle, path)
      end
    end)
  end)

  it("without effect says why, unless its value is what happens anyhow", function()
    each("idle", function(path, entry)
      for _, value in ipairs(FITTING[entry.kind]) do
        local problems, idle = check.walk(config_of(path, value))
        assert.are.same({}, problems, path)
        assert.are.same(value == entry.harmless and {} or { { key = path, why = entry.why } }, idle, path)
      end
      assert.is_true(#entry.why > 10, path)
    end)
  end)

  it("that cannot be done is refused by name, unless its value requests nothing", function()
    each("refused", function(path, entry)
      for _, value in ipairs(FITTING[entry.kind]) do
        local problems = check.walk(config_of(path, value))
        if value == entry.harmless then
          assert.are.same({}, problems, path)
        else
          assert.are.equal(1, #problems, path)
          assert.is_truthy(problems[1]:find(path, 1, true) and problems[1]:find(entry.why, 1, true), path)
        end
      end
    end)
  end)

  it("of another type is named, with what is expected", function()
    for path, entry in pairs(keys.all) do
      if UNFIT[entry.kind] ~= nil then
        local problems = check.walk(config_of(path, UNFIT[entry.kind]))
        assert.are.equal(1, #problems, path)
        assert.matches("expected .*, got ", problems[1])
      end
    end
  end)

  it("may be 'auto' where the run says what it is, and nowhere else", function()
    for path, entry in pairs(keys.all) do
      if UNFIT[entry.kind] ~= nil and entry.kind ~= "text" then
        local problems = check.walk(config_of(path, "auto"))
        assert.are.equal(entry.auto and 0 or 1, #problems, path)
      end
    end
  end)

  it("that is a block is refused, or named, where it is turned on", function()
    for path, entry in pairs(keys.all) do
      if entry.kind == "block" then
        local on = entry.switch and { [entry.switch] = entry.switch == "autotp_size" and 2 or true }
          or { x = 1 }
        if entry.keys[1] and not entry.switch then on = { [entry.keys[1]] = 1 } end
        local problems, idle = check.walk(config_of(path, on))
        assert.are.equal(entry.use == "refused" and 1 or 0, #problems, path)
        assert.are.equal(entry.use == "idle" and 1 or 0, #idle, path)
        if entry.switch then
          problems, idle = check.walk(config_of(path,
            { [entry.switch] = entry.switch == "autotp_size" and 1 or false }))
          assert.are.same({ {}, {} }, { problems, idle }, path)
        end
      end
    end
  end)

  it("that is misspelt is named with the nearest one, in every block", function()
    local hf = hf_config.HfDeepSpeedConfig { zero_optimisation = {}, fp16 = { enable = true },
      zero_optimization = { stag = 2, offload_param = { devise = "cpu" } },
      hybrid_engine = { enabled = false, pin_parameter = true } }
    local problems = table.concat(check.walk(hf), "\n")
    for _, text in ipairs { "zero_optimisation: there is no such key; did you mean zero_optimization?",
      "fp16.enable: there is no such key; did you mean fp16.enabled?",
      "zero_optimization.stag: there is no such key; did you mean zero_optimization.stage?",
      "zero_optimization.offload_param.devise: there is no such key; did you mean " ..
        "zero_optimization.offload_param.device?",
      "hybrid_engine.pin_parameter: there is no such key; did you mean hybrid_engine.pin_parameters?" } do
      assert.is_truthy(problems:find(text, 1, true), text)
    end
  end)
end)
