-- Notices: what is no error, but hardly ever meant, is pointed out once, with the line, by rank 0.
local ranks = require "spec.support.ranks"

local function count(text, part)
  local n, at = 0, 0
  while true do
    at = text:find(part, at + 1, true)
    if not at then return n end
    n = n + 1
  end
end

-- What `script` writes to stderr on n ranks: `part` stands there once, with the number of the line
-- that has "HERE" in it.
local function says(part, script, n)
  local before = script:match("^(.-)HERE")
  local line = ranks.prelude_lines + 1 + select(2, before:gsub("\n", "\n"))
  local _, err = ranks.ok(n or 1, script)
  assert.are.equal(1, count(err, part), err)
  assert.matches("accelerate: [^\n]*script%.lua:" .. line .. ": [^\n]*" .. part:gsub("%p", "%%%0"), err)
end

local function silent(script, n, part)
  local _, err = ranks.ok(n or 1, script)
  if part then assert.are.equal(0, count(err, part), err) else assert.are.equal("", err) end
end

local MODEL = [[
local nn, optim, data = accelerate.nn, accelerate.optim, accelerate.data
local model = nn.Linear(2, 1)
local function new_optimizer() return optim.SGD(model:parameters(), { lr = 0.1 }) end
local function backward(by)
  local loss = model(core.ones(4, 2)):sum()
  if by then by:backward(loss) else loss:backward() end
end
]]

describe("a notice", function()
  it("names modules in a plain table, which are no part of the module", function()
    local net = [[
      local nn = accelerate.nn
      local Net = nn.class("Net")
      function Net:init(LIST)
        self.fc = nn.Linear(2, 2)
        self.layers = LIST
        for i = 1, 2 do self.layers[i] = nn.Linear(2, 2) end
        self.known = { self.fc, { fc = self.fc } } -- in a table, but registered
        self.plain = { 1, { "a" }, nn.ReLU() }     -- nothing to train
      end
    ]]
    local use = [[
      local net = Net(...)
      for _ = 1, 2 do net:parameters() end -- HERE
    ]]
    says("Net: 'layers' is a plain table, and what is in it is no part of the module: 4 parameters",
      net:gsub("LIST", "_"):gsub("self.layers = _", "self.layers = {}") .. use)
    silent(net:gsub("%(LIST%)", "()"):gsub("LIST", "nn.ModuleList()"):gsub("self%.layers%[i%] = (%b())",
      "self.layers:append%1")
      :gsub("self%.layers%[i%] = nn.Linear%(2, 2%)", "self.layers:append(nn.Linear(2, 2))") ..
        use:gsub("%.%.%.", ""))
  end)

  it("says that no parameter has a gradient", function()
    says("SGD: step, and none of the 2 parameters has a gradient", MODEL .. [[
      local optimizer = new_optimizer()
      for _ = 1, 3 do optimizer:step() end -- HERE
      new_optimizer():step()
    ]])
    silent(MODEL .. [[
      local optimizer = new_optimizer()
      backward()
      optimizer:step()
      optimizer:zero_grad()
      optimizer:step()
    ]])
  end)

  it("says that a scheduler was stepped before its optimizer", function()
    local script = MODEL .. [[
      local optimizer = new_optimizer()
      local scheduler = optim.lr_scheduler.StepLR(optimizer, { step_size = 2 })
      PREPARE
      for _ = 1, 3 do
        backward()
        scheduler:step() -- HERE
        optimizer:step()
      end
    ]]
    local prepared = script:gsub("PREPARE",
      "optimizer, scheduler = accelerate.Accelerator():prepare(optimizer, scheduler)")
    for _, text in ipairs { (script:gsub("PREPARE", "")), prepared } do
      says("StepLR: step before the optimizer's first one", text)
      silent((text:gsub("scheduler:step%(%)([^\n]*\n%s*)optimizer:step%(%)",
        "optimizer:step()%1scheduler:step()")))
    end
  end)

  it("says that a model is trained on several ranks and was not prepared", function()
    local raw = MODEL .. [[
      local optimizer = new_optimizer()
      PREPARE
      for _ = 1, 2 do
        backward()
        optimizer:step() -- HERE
      end
    ]]
    local function with(text) return (raw:gsub("PREPARE", text)) end
    says("SGD: step, on 2 ranks, of an optimizer that was not prepared", with "", 2)
    says("SGD: step on parameters that belong to no prepared model",
      with "optimizer = accelerate.Accelerator():prepare(optimizer)", 2)
    silent(with "model, optimizer = accelerate.Accelerator():prepare(model, optimizer)", 2)
    silent(with "")
  end)

  it("says that what was given to prepare is used in place of what it returned", function()
    local script = MODEL .. [[
      local accelerator = accelerate.Accelerator { gradient_accumulation_steps = STEPS }
      local optimizer = new_optimizer()
      local scheduler = optim.lr_scheduler.StepLR(optimizer, { step_size = 2 })
      local loader = data.DataLoader(data.TensorDataset(core.arange(8)), { batch_size = 2 })
      RESULTS accelerator:prepare(model, optimizer, loader, scheduler)
      for _ = 1, 2 do
        for _ in loader:iter() do -- LOADER
          accelerator:accumulate(model, function()
            backward(accelerator)
            optimizer:step() -- OPTIMIZER
            scheduler:step() -- SCHEDULER
          end)
        end
      end
    ]]
    local thrown, kept = script:gsub("RESULTS", ""), script:gsub("RESULTS",
      "model, optimizer, loader, scheduler =")
    for name, part in pairs {
      LOADER = "a pass over the loader that was given to prepare",
      OPTIMIZER = "SGD: step of the optimizer that was given to prepare",
      SCHEDULER = "StepLR: step of the scheduler that was given to prepare",
    } do
      says(part, (thrown:gsub(name, "HERE"):gsub("STEPS", "2")))
      says(part, (thrown:gsub(name, "HERE"):gsub("STEPS", "1")), 2)
    end
    silent((thrown:gsub("STEPS", "1"))) -- makes no difference
    silent((kept:gsub("STEPS", "2")))
    silent((kept:gsub("STEPS", "1")), 2, "given to prepare")
  end)
end)
