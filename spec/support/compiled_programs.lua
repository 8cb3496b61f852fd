-- Programs like those that a compiler has got wrong: what a training script does between tensors,
-- in plain Lua. Each takes a number of steps and returns a text that must not depend on the
-- compiler.
--
--   accel-run -e 'print(require("spec.support.compiled_programs").NAME(1000000))'
local M = {}

-- A generator of our own: the programs must not depend on math.random either.
local function generator(state)
  return function(n)
    state = (state * 1103515245 + 12345) % 2147483648
    return math.floor(state / 65536) % n + 1
  end
end

--- Parameters by layer, counted at every step after a variadic call with a loop of its own.
function M.groups_of_parameters(steps)
  local layers = {}
  for _, name in ipairs { "stem", "block", "neck", "head" } do layers[name] = { w = 1, b = 2, g = 3 } end
  local function report(...)
    local sum = select("#", ...)
    for j = 1, 60 do sum = sum + j % 2 end
    return sum
  end
  local total, reported = 0, 0
  for step = 1, steps do
    reported = reported + report("step", step, nil)
    local seen, values = 0, 0
    for _, parameters in pairs(layers) do
      for _, value in pairs(parameters) do values = values + value end
      seen = seen + 1
    end
    if seen ~= 4 or values ~= 24 then
      error(("step %d: %d of 4 layers, values %d of 24"):format(step, seen, values))
    end
    total = total + values
  end
  return total .. " " .. reported
end

--- An optimizer's state by parameter object; parameters are frozen (their state goes) and thawed.
function M.state_by_object(steps)
  local draw, parameters, state = generator(7), {}, {}
  for i = 1, 12 do parameters[i] = { id = i, value = i / 4 } end
  local made, sum = 0, 0
  for step = 1, steps do
    local p = parameters[draw(12)]
    local s = state[p]
    if s == nil then
      s = { step = 0, average = 0 }
      state[p] = s
      made = made + 1
    end
    s.step = s.step + 1
    s.average = 0.5 * s.average + p.value
    if step % 17 == 0 then state[parameters[draw(12)]] = nil end
    if step % 64 == 0 then
      local count, ids = 0, 0
      local key, value = next(state)
      while key ~= nil do
        count, ids, sum = count + 1, ids + key.id, sum + value.step
        key, value = next(state, key)
      end
      for q in pairs(state) do count, ids = count - 1, ids - q.id end
      if count ~= 0 or ids ~= 0 then error("step " .. step .. ": next and pairs differ") end
    end
  end
  return ("%d %d"):format(made, sum)
end

--- Hooks added and removed while a loop calls them; an upvalue that is a number, a text, nil or a
--- table in turn.
function M.closures_that_change(steps)
  local hooks, log, last = {}, {}, nil -- luacheck: ignore log (kept alive, never read)
  local function add(weight)
    local calls = 0
    hooks[#hooks + 1] = function(x)
      calls = calls + 1
      if calls % 3 == 0 then
        last = calls
      elseif calls % 3 == 1 then
        last = "call " .. calls % 7
      else
        last = nil
      end
      return x * weight % 1009
    end
  end
  add(3) add(5) add(7)
  local x, kinds = 1, { number = 0, string = 0, ["nil"] = 0, table = 0 }
  for step = 1, steps do
    for i = 1, #hooks do x = hooks[i](x) + 1 end
    if step % 1000 == 0 then
      table.remove(hooks, 1)
      add(step % 11 + 2)
      last = { step }
    end
    local kind = type(last)
    kinds[kind] = kinds[kind] + 1
    log[step % 8 + 1] = last
  end
  return ("%d %d %d %d %d %s"):format(x, kinds.number, kinds.string, kinds["nil"], kinds.table,
    tostring(log[2]))
end

--- Objects with finalisers, some raising, made and dropped in a loop that is compiled.
function M.finalisers(steps)
  local made, ended, lists = 0, 0, 0
  local function handle(fails)
    local object = newproxy(true)
    made = made + 1
    getmetatable(object).__gc = function()
      ended = ended + 1
      if fails then error("a finaliser that raises") end
    end
    return object
  end
  for step = 1, steps do
    if step % 50 == 0 then handle(step % 2000 == 0) end
    local ok, n = pcall(function(k)
      local list = {}
      for i = 1, 6 do list[i] = { i * k } end
      return #list
    end, step % 5)
    if not ok then error("step " .. step .. ": " .. tostring(n)) end
    lists = lists + n
  end
  for _ = 1, 4 do pcall(collectgarbage) end
  collectgarbage()
  if ended ~= made then error(("%d of %d finalisers ran"):format(ended, made)) end
  return ("%d %d"):format(made, lists)
end

--- Batches from coroutines inside coroutines; a pass that is left early; an error that goes through
--- one.
function M.coroutines(steps)
  local function samples(n)
    return coroutine.wrap(function() for i = 1, n do coroutine.yield(i, i % 3 == 0 and "third" or i) end end)
  end
  local function batches(n, size)
    return coroutine.wrap(function()
      local batch = {}
      for i, label in samples(n) do
        batch[#batch + 1] = { i, label }
        if #batch == size then
          coroutine.yield(batch)
          batch = {}
        end
      end
      if #batch > 0 then coroutine.yield(batch) end
    end)
  end
  local step, sum, thirds, broken, failed = 0, 0, 0, 0, 0
  while step < steps do
    for batch in batches(100, 8) do
      for _, item in ipairs(batch) do
        step, sum = step + 1, sum + item[1]
        if item[2] == "third" then thirds = thirds + 1 end
      end
      if step % 7 == 0 then
        broken = broken + 1
        break
      end
    end
    local ok, why = pcall(coroutine.wrap(function()
      for i in samples(5) do if i == 4 then error({ at = i }) end end
    end))
    if ok or why.at ~= 4 then error("an error was lost") end
    failed = failed + 1
  end
  return ("%d %d %d %d %d"):format(step, sum, thirds, broken, failed)
end

--- Counts of pairs of labels, which are numbers in one epoch and texts in another, and scores
--- computed of them.
function M.counts_of_labels(steps)
  local draw, names, result = generator(3), { "cat", "dog", "owl" }, {}
  local done = 0
  while done < steps do
    local texts = #result % 2 == 1
    local counts, labels = {}, {}
    for _ = 1, math.min(steps - done, 2000) do
      local truth = draw(3)
      local guess = draw(10) < 7 and truth or draw(3)
      local t, g = texts and names[truth] or truth, texts and names[guess] or guess
      counts[t] = counts[t] or {}
      counts[t][g] = (counts[t][g] or 0) + 1
      labels[t], labels[g] = true, true
      done = done + 1
    end
    local list, f1 = {}, 0
    for label in pairs(labels) do list[#list + 1] = label end
    table.sort(list)
    for _, label in ipairs(list) do
      local hit, guessed, real = counts[label] and counts[label][label] or 0, 0, 0
      for truth, row in pairs(counts) do
        for guess, n in pairs(row) do
          if guess == label then guessed = guessed + n end
          if truth == label then real = real + n end
        end
      end
      f1 = f1 + (guessed + real > 0 and 2 * hit / (guessed + real) or 0)
    end
    result[#result + 1] = ("%s%.6f"):format(tostring(list[#list]), f1 / #list)
  end
  local low = 1
  for _, text in ipairs(result) do low = math.min(low, tonumber(text:match("[%d.]+$"):match("%d%.%d+$"))) end
  return ("%d epochs, least %.6f, last %s"):format(#result, low, result[#result])
end

--- Functions found by name through pcall and load, kept in tables by function, and called through
--- those.
function M.functions_as_keys(steps)
  local entries, about = {}, {}
  for _, library in ipairs { "math", "string", "table", "bit", "os", "io", "coroutine", "debug",
    "nothing" } do
    for _, name in ipairs { "abs", "floor", "max", "rep", "byte", "upper", "concat", "band", "clock",
      "missing", "type", "status", "sqrt" } do
      entries[library .. "." .. name] = { name = library .. "." .. name, calls = 0 }
    end
  end
  for name, entry in pairs(entries) do
    local found, fn = pcall(load("return " .. name))
    if found and fn then about[fn] = entry end
  end
  local kinds, hits, misses = { math.abs, string.upper, print, math.floor, "text", 3, false }, 0, 0
  for step = 1, steps do
    local key = kinds[step % 7 + 1]
    local entry = about[key]
    if entry then
      entry.calls = entry.calls + 1
      hits = hits + #entry.name
    else
      misses = misses + 1
    end
  end
  local list = {}
  for _, entry in pairs(about) do list[#list + 1] = entry.name .. "=" .. entry.calls end
  table.sort(list)
  return hits .. " " .. misses .. " " .. table.concat(list, " ")
end

--- Classes with inherited methods, attributes looked up by a function, objects that are called, and
--- metamethods of # and pairs.
function M.classes(steps)
  local Base = {}
  Base.__index = function(self, key)
    local own = rawget(self, "_values")[key]
    if own ~= nil then return own end
    return getmetatable(self)[key]
  end
  Base.__newindex = function(self, key, value) rawget(self, "_values")[key] = value end
  Base.__call = function(self, x) return self:forward(x) end
  Base.__len = function(self) return self.count or 0 end
  Base.__ipairs = function(self) return ipairs(rawget(self, "_values")) end
  Base.__pairs = function(self) return next, rawget(self, "_values"), nil end
  local function class(fields)
    for key, value in pairs(Base) do if fields[key] == nil then fields[key] = value end end
    return function(values) return setmetatable({ _values = values }, fields) end
  end
  local Scale = class { forward = function(self, x) return x * self.by % 10007 end }
  local Shift = class { forward = function(self, x) return x + self.by end }
  local Chain = class { forward = function(self, x)
    for _, layer in ipairs(self) do x = layer(x) end
    return x
  end }
  local chain = Chain { Scale { by = 3 }, Shift { by = 5 }, Scale { by = 7 }, count = 3 }
  local x, entries = 1, 0
  for step = 1, steps do
    x = chain(x)
    if step % 16 == 0 then
      for key in pairs(chain) do entries = entries + (type(key) == "number" and key or 10) end
      chain.seen = (chain.seen or 0) + #chain
      if step % 4096 == 0 then chain.seen = nil end
    end
  end
  return ("%d %d %s"):format(x, entries, tostring(chain.seen))
end

--- Texts made, cut, matched and used as keys; variadic calls with holes.
function M.texts_and_varargs(steps)
  local function pick(...)
    local n, sum = select("#", ...), 0
    for i = 1, n do sum = sum + ((select(i, ...)) or 1) end
    return n, sum
  end
  local table_of, total, longest = {}, 0, 0
  for step = 1, steps do
    local key = "layer." .. step % 13 .. (step % 2 == 0 and ".weight" or ".bias")
    local at, kind = key:match("^layer%.(%d+)%.(%a+)$")
    table_of[key] = (table_of[key] or 0) + tonumber(at) + #kind
    local n, sum
    if step % 3 == 0 then
      n, sum = pick(step, nil, 2)
    elseif step % 3 == 1 then
      n, sum = pick()
    else
      n, sum = pick(nil, nil)
    end
    total = total + n + sum % 1000
    if step % 128 == 0 then
      local line = table.concat({ key:upper():sub(1, 5), step % 10, ("%.3f"):format(step / 7) }, ",")
      if #line > longest then longest = #line end
    end
  end
  local keys = {}
  for key, value in pairs(table_of) do keys[#keys + 1] = key .. "=" .. value end
  table.sort(keys)
  return ("%d %d %d %s"):format(total, longest, #keys, keys[7])
end

--- Numbers in C arrays and structs beside tables of them; 64-bit integers; bits.
function M.numbers_of_c(steps)
  local ffi, bit = require "ffi", require "bit"
  local row = ffi.typeof("struct { double value; int32_t count; uint64_t bits; }")
  local rows, sums = ffi.new(ffi.typeof("$[8]", row)), {}
  local hash = 1ULL
  for step = 1, steps do
    local r = rows[step % 8]
    r.value = r.value * 0.5 + step % 5
    r.count = r.count + 1
    if step % 4 == 0 then
      hash = hash * 6364136223846793005ULL + 1442695040888963407ULL
      r.bits = bit.bxor(r.bits, hash)
    end
    if step % 32 == 0 then
      local k = tonumber(bit.rshift(hash, 60))
      sums[k] = (sums[k] or 0) + r.count % 3
    end
  end
  local text = {}
  for k = 0, 15 do text[#text + 1] = tostring(sums[k]) end
  for k = 0, 7 do
    text[#text + 1] = ("%.6f %d %s"):format(rows[k].value, rows[k].count, tostring(rows[k].bits))
  end
  return table.concat(text, " ")
end

return M
