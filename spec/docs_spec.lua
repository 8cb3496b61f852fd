-- The generated pages are those that the sources make now, and the Lua on the pages runs.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"

-- What docs/coming-from-pytorch.md takes for granted, made anew before each of its blocks.
local ASSUMED = [[
  accelerate, tensor, nn, optim, data = require "accelerate", require "accelerate.tensor",
    require "accelerate.nn",
    require "accelerate.optim", require "accelerate.data"
  F, device, loss_function = nn.functional, "cpu", nn.CrossEntropyLoss()
  function assumed(makes_its_own)
    accelerate.state.reset()
    accelerator = not makes_its_own and accelerate.Accelerator() or nil
    local set = data.TensorDataset(tensor.rand(10, 4), tensor.randint(0, 3, 10))
    model = nn.Linear(4, 3)
    optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
    scheduler = optim.lr_scheduler.StepLR(optimizer, { step_size = 2 })
    training_loader = data.DataLoader(set, { batch_size = 4, shuffle = true })
    validation_loader = data.DataLoader(set, { batch_size = 4 })
    prepare_dataset = function() return set end
  end
]]

-- One line of docs/indexing.md: Lua, "--", Python, and for an expression what it gives.
local function check_line(line, env)
  local code, shown = line:match "^(.-)%s+%-%-%s(.*)$"
  local expected = shown:match "%s%s+(%S.*)$"
  local chunk = assert(loadstring((expected and "return " or "") .. code))
  local result = setfenv(chunk, env)()
  if not expected then return 0 end
  if env.tensor.is_tensor(result) then result = result:totable() end
  assert.are.same(assert(loadstring("return " .. expected))(), result, line)
  return 1
end

describe("docs", function()
  it("show keys that give what the page says", function()
    local count = 0
    for block in assert(fs.read("docs/indexing.md")):gmatch("```lua\n(.-)```") do
      local env = setmetatable({ tensor = require "accelerate.tensor" }, { __index = _G })
      env.x = env.tensor.arange(12):view(3, 4)
      for line in block:gmatch "[^\n]+" do count = count + check_line(line, env) end
    end
    assert.are.equal(34, count)
  end)

  it("have the page of ops that `make docs` writes", function()
    local stored = assert(fs.read("docs/reference/ops.md"), "no docs/reference/ops.md; run make docs")
    assert.is_true(stored == dofile("host/tools/gendoc.lua").ops_page(),
      "docs/reference/ops.md is out of date; run make docs")
  end)

  it("have the page of each module that `make docs` writes, with a description of every member", function()
    local pages, undocumented = dofile("host/tools/reference.lua").pages()
    assert.are.same({}, undocumented)
    for name, text in pairs(pages) do
      assert.is_true(fs.read("docs/reference/" .. name) == text,
        ("docs/reference/%s is out of date; run make docs"):format(name))
    end
  end)

  it("write a class's functions that take no object with a dot, its methods with a colon", function()
    local pages = dofile("host/tools/reference.lua").pages()
    for name, headings in pairs {
      ["nn.md"] = { "### nn.Embedding.from_pretrained(",
        "### nn.SyncBatchNorm.convert_sync_batchnorm(module, [process_group])",
        "### embedding:reset_parameters()", "### lazylinear:reset_parameters()" },
      ["data.md"] = { "### data.Dataset.from_list(rows)", "### dataset:map(" },
      ["models.md"] = { "### models.BertModel.from_pretrained(folder, [opts])" },
    } do
      for _, heading in ipairs(headings) do
        assert.is_truthy(pages[name]:find("\n" .. heading, 1, true), heading)
      end
    end
  end)

  it("list every field and method of a tensor, with its arguments", function()
    local page = assert(fs.read("docs/reference/tensor.md"))
    local missing = {}
    for name in pairs(require("accelerate.core")._tensor_names()) do
      local entry = page:find("\n### x[:.]" .. name .. "%f[%s(]")
        or page:find("\n* [`x:" .. name .. "(", 1, true)
        or page:find("\n* [`x." .. name .. "`", 1, true) or page:find("\n* [`tensor." .. name .. "(", 1, true)
        or page:find('\n* [`x["' .. name .. '"](x, ', 1, true)
      if not entry then missing[#missing + 1] = name end
    end
    assert.are.same({}, missing)
    assert.is_truthy(page:find("\n### x:backward([gradient], ...)\n", 1, true))
    assert.is_truthy(page:find("\n## tensor.grad(outputs, inputs, [options])\n", 1, true))
  end)

  it("begin each page with a script that runs", function()
    local names = assert(fs.list("docs/synopsis"))
    assert.is_true(#names > 10)
    for _, name in ipairs(names) do
      local status, _, stderr = host.run { "docs/synopsis/" .. name }
      assert.are.equal(0, status, name .. ": " .. stderr)
    end
  end)

  it("show Accelerate's loops in Lua that runs", function()
    local script = { ASSUMED }
    for block in assert(fs.read("docs/coming-from-pytorch.md")):gmatch("```lua\n(.-)```") do
      script[#script + 1] = ("assumed(%s) do\n%send"):format(tostring(block:find("accelerate.Accelerator", 1,
        true) ~= nil), block)
    end
    assert.is_true(#script > 11)
    host.in_folder(function(folder)
      local text = table.concat(script, "\n"):gsub('"out"', ("%q"):format(folder .. "/out"))
      local status, _, stderr = host.run({ "-" }, { stdin = text })
      assert.are.equal(0, status, stderr)
      assert.is_true(fs.exists(folder .. "/out/model.safetensors"))
    end)
  end)
end)
