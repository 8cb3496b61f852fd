-- lua/accelerate/messages/strictness.lua: names that nothing has, in a strict run and in others.
local host = require "spec.support.host"

-- Runs a script with options, in a folder with `other.lua`. Returns the status, stdout and stderr.
local function run(script, words, env, other)
  local status, out, err
  host.in_folder(function(folder)
    for name, content in pairs { ["script.lua"] = script, ["other.lua"] = other or "" } do
      local file = assert(io.open(folder .. "/" .. name, "w"))
      file:write(content)
      file:close()
    end
    local all = { unpack(words or {}) }
    all[#all + 1] = "script.lua"
    status, out, err = host.run(all, { folder = folder, env = env })
  end)
  return status, out, err
end

local HEAD = [[
local nn, optim = require "accelerate.nn", require "accelerate.optim"
local data, tensor = require "accelerate.data", require "accelerate.tensor"
local m = nn.Linear(2, 2, { bias = false })
local opt = optim.SGD(nn.Linear(1, 1):parameters(), { lr = 1 })
local set = data.TensorDataset(tensor.ones(2))
]]

-- What a line reads that nothing has, and the message.
local FIELDS = {
  ["local w = m.wieght"] = "Linear has no 'wieght'; did you mean 'weight'?",
  ["print(opt.param_group)"] = "SGD has no 'param_group'; did you mean 'param_groups'?",
  ["return nn.Linear.forwrad"] = "class Linear has no 'forwrad'; did you mean 'forward'?",
  ["local t = { nn.ModuleList { m }.extendd }"] = "ModuleList has no 'extendd'; did you mean 'extend'?",
  ["local n = set.colums"] = "TensorDataset has no 'colums'",
  ["local N = nn.class 'N' function N:init() self.hidden = 3 end local h = N().hiden"] =
    "N has no 'hiden'; did you mean 'hidden'?",
}

describe("a strict run", function()
  it("refuses a field that an object of the library does not have", function()
    for line, message in pairs(FIELDS) do
      local status, _, err = run(HEAD .. line, { "--strict" })
      assert.equal(1, status, line)
      assert.equal("accel-run: script.lua:6: " .. message, err:match "^[^\n]*")
    end
  end)

  it("refuses a global that nothing has set, also in a file of the script's folder", function()
    for _, line in ipairs { "local x = lerning_rate", "if lerning_rate then print(1) end",
      "local x = lerning_rate or 3" } do
      local status, _, err = run("learning_rate = 3\n" .. line, { "--strict" })
      assert.equal(1, status)
      assert.matches("^accel%-run: script%.lua:2: the global 'lerning_rate' is nil: nothing has set it; " ..
        "did you " ..
        "mean 'learning_rate'%?\n", err)
    end
    local _, _, err = run("package.path = './?.lua;' .. package.path\nrequire 'other'", { "--strict" }, nil,
      "local y = nowhere")
    assert.matches("other%.lua:1: the global 'nowhere' is nil", err)
  end)

  it("lets fields be tested, and globals be compared with nil", function()
    local status, out, err = run(HEAD .. [[
if m.bais or not m.wieght then print(type(m.kernel), m.kernel == nil) end
local b = m.kernel
if b then print "there" end
print(type(FAST), FAST == nil, rawget(_G, "FAST"), m.bias)
]], { "--strict" })
    assert.equal(0, status, err)
    assert.equal("nil\ttrue\nnil\ttrue\tnil\tnil\n", out)
  end)

  it("is chosen by the environment, and by the script", function()
    local status = run("local x = nowhere", nil, { ACCEL_STRICT = "1" })
    assert.equal(1, status)
    assert.equal(0, (run("local x = nowhere", nil, { ACCEL_STRICT = "0" })))
    local _, out, err = run("local accelerate = require 'accelerate'\naccelerate.strict()\n" ..
      "print((pcall(function() local x = nowhere end)))\naccelerate.strict(false)\n" ..
      "print((pcall(function() local x = nowhere end)))\naccelerate.strict(3)")
    assert.equal("false\ntrue\n", out)
    assert.matches("accel%-run: script%.lua:6: strict: expected true or false, got 3", err)
  end)
end)

describe("a run that is not strict", function()
  it("points out once a field whose name is near another one", function()
    for line, message in pairs(FIELDS) do
      local status, _, err = run(HEAD .. "for _ = 1, 30 do (function() " .. line .. " end)() end")
      assert.equal(0, status, err)
      local near = message:match "; did you mean.*"
      assert.equal(near and ("accelerate: script.lua:6: %s: it is nil%s\n"):format(message:match "^[^;]*",
        near)
        or "", (err))
    end
  end)

  it("says nothing where fields are tested, or no name is near", function()
    local _, _, err = run(HEAD .. [[
if m.bais then print(m.bais) end
local b = m.wieght and m.wieght:sum()
local c = m.something, m.kernel
local d = m.bias
print(type(m.wieght), m.wieght == nil, rawget(m, "wieght"))
]])
    assert.equal("", err)
  end)
end)

-- The annotations say which fields may be nil; reading one is no mistake in any run.
describe("a field that may be nil", function()
  local annotations = require "host.tools.annotations"
  local class = require "accelerate.utils.class"
  local public = require "host.tools.public"

  -- Every class of the loaded modules, by name.
  local function classes()
    local found = {}
    for _, page in ipairs(public.PAGES) do require(page[2]) end
    for name, module in pairs(package.loaded) do
      if name:find "^accelerate" and type(module) == "table" then
        for _, value in pairs(class.itself(module) and { module } or module) do
          if class.itself(value) then found[value.__name] = value end
        end
      end
    end
    return found
  end

  local function optional_fields(body)
    for _, path in ipairs(public.files_under { "lua/accelerate" }) do
      local lines = annotations.lines(path)
      for n, line in ipairs(lines) do
        local name = line:match "^%-%-%-@class%s+[%w_.]*%f[%w_]([%w_]+)"
        local last = n
        while name and lines[last] and lines[last]:find "^%-%-%-" do last = last + 1 end
        if name and (lines[last] or ""):find "= [%w_.]*class" then
          for _, field in ipairs(annotations.above(path, last).fields) do
            if field.optional then body(name, field.name) end
          end
        end
      end
    end
  end

  it("is known to its class", function()
    local known, missing, count = classes(), {}, 0
    optional_fields(function(name, field)
      local root = known[name]
      while root and rawget(root, "__base") do root = root.__base end
      if not root then return end -- a class that no module hands out
      count = count + 1
      if not (root._optional and root._optional[field]) then missing[#missing + 1] = name .. "." .. field end
    end)
    assert.same({}, missing)
    assert.is_true(count > 20, count)
  end)

  it("draws no remark", function()
    local status, _, err = run([[
local t = require "accelerate.tokenizers".train_bpe({ "a" }, { vocab_size = 258 })
local data = require "accelerate.data"
local loader = data.DataLoader({ 1, 2 }, { collate_fn = function(x) return x end })
local list = { t.pad_token, t.pad_token_id, loader.sampler, loader.worker_init_fn }
print(#list)
]], { "--strict" })
    assert.equal("", err)
    assert.equal(0, status)
  end)
end)
