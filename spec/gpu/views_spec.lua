--- Kernels that read rows, given views and mixed types at once, against the CPU: odd starts, odd
--- sizes, strided rows, half types beside float32; values and gradients.
local device = require "spec.support.device"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"
local F = nn.functional

if not device.name then
  describe("views and mixed types on the device",
    function() it("need one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local TOLERANCE = { float64 = 1e-11, float32 = 3e-5, bfloat16 = 3e-2, float16 = 6e-3 }
local HALVES = { "float32", "bfloat16", "float16" }
local generator = tensor.Generator(7)

local function draw(...) return tensor.randn({ ... }, { generator = generator }) end
local function classes(n, ...) return tensor.randint(0, n, { ... }, { generator = generator }) end

--- fn(put) gives tensors, made of what put moves to the device under test.  `within`: the type
--- whose tolerance counts, where results are wider than what they come from; or a tolerance.
local function agrees(what, fn, within)
  local here = { fn(function(t) return t:clone() end) }
  local there = { fn(function(t) return t:to(D, { copy = true }) end) }
  assert.are.equal(#here, #there, what)
  for k, expected in ipairs(here) do
    local own = TOLERANCE[expected.dtype] or 0
    local name = ("%s, result %d"):format(what, k)
    device.agree(there[k], expected, math.max(own, TOLERANCE[within] or tonumber(within) or 0), name)
  end
end

-- Leaves whose views are used, and the gradients of a weighted sum.
local function leaf(put, t) return put(t):requires_grad_() end
local function backward(y, weights)
  (y:float() * weights:flatten():narrow(1, 1, y:numel()):view(y.shape)):sum():backward()
end

describe(("views and mixed types on %s (%s)"):format(D, device.kind), function()
  for _, x_type in ipairs(HALVES) do
    it(("norms of %s rows that start anywhere, weights of each type"):format(x_type), function()
      for _, w_type in ipairs(HALVES) do
        for _, n in ipairs { 1, 7, 64, 1030, 2056 } do
          local buffer = draw(3 * n + 5):to(x_type)
          local scales, shifts = (draw(n + 3) * 0.2 + 1):to(w_type), draw(n + 3):to(w_type)
          local weights = draw(3 * n)
          for _, start in ipairs { 1, 2 } do
            -- One element's gradient is 0: what rounding leaves of it grows by 1 / sqrt(eps).
            local within = n == 1 and x_type == "float32" and 1e-4 or x_type
            agrees(("layer_norm of %d, weight %s, from %d"):format(n, w_type, start), function(put)
              local x, w, b = leaf(put, buffer), leaf(put, scales), leaf(put, shifts)
              local y = F.layer_norm(x:narrow(1, start, 3 * n):view(3, n), { n },
                { weight = w:narrow(1, start, n), bias = b:narrow(1, 4 - start, n) })
              backward(y, put(weights))
              return y, x.grad, w.grad, b.grad
            end, within)
            agrees(("rms_norm of %d, weight %s, from %d"):format(n, w_type, start), function(put)
              local x, w = leaf(put, buffer), leaf(put, scales)
              local y = F.rms_norm(x:narrow(1, start, 3 * n):view(3, n), { n },
                { weight = w:narrow(1, 3 - start, n) })
              backward(y, put(weights))
              return y, x.grad, w.grad
            end, x_type)
          end
        end
      end
    end)

    it(("norms of %s images that are transposed or start anywhere"):format(x_type), function()
      local views = {
        transposed = function(x, s)
          return x:narrow(1, 2, x:numel() - 1):view(s[2], s[1], s[3]):transpose(1, 2)
        end,
        ["an odd start"] = function(x, s) return x:narrow(1, 2, x:numel() - 1):view(s) end,
      }
      for _, s in ipairs { { 2, 6, 15 }, { 3, 16, 33 } } do
        local c = s[2]
        local buffer, weights = draw(s[1] * c * s[3] + 1):to(x_type), draw(s[1] * c * s[3])
        local scales, shifts = draw(c + 1) * 0.2 + 1, draw(c + 1)
        for name, view in pairs(views) do
          for _, kind in ipairs { "group_norm", "batch_norm" } do
            agrees(("%s of %d channels, %s"):format(kind, c, name), function(put)
              local x, w, b = leaf(put, buffer), leaf(put, scales), leaf(put, shifts)
              local own, shift = w:narrow(1, 2, c), b:narrow(1, 2, c)
              local mean, var = put(tensor.zeros(c)), put(tensor.ones(c))
              local y = kind == "group_norm" and F.group_norm(view(x, s), 2, { weight = own, bias = shift })
                or F.batch_norm(view(x, s), mean, var, { weight = own, bias = shift, training = true })
              backward(y, put(weights))
              return y, x.grad, w.grad, b.grad, mean, var
            end, x_type)
          end
        end
      end
    end)

    it(("losses of %s logits with strides of any kind, weights in float32"):format(x_type), function()
      for _, c in ipairs { 7, 1001, 2500 } do
        local views = {
          ["a part of rows"] = function(b) return b:narrow(2, 2, c) end,
          transposed = function(b) return b:narrow(2, 1, c):t():contiguous():t() end,
          ["every other row"] = function(b) return b:narrow(2, 3, c)[{ { 1, 9, 2 } }] end,
        }
        local base, weight = draw(9, c + 3):to(x_type), tensor.rand(c, { generator = generator }) + 0.5
        local target, shares = classes(c, 9), draw(9, c + 1):softmax(-1):to(x_type)
        for name, view in pairs(views) do
          for _, kind in ipairs { "classes", "shares", "likelihoods" } do
            agrees(("%s, %d, %s"):format(kind, c, name), function(put)
              local b = leaf(put, base)
              local x = view(b)
              local n, loss = x.shape[1]
              if kind == "likelihoods" then
                loss = F.nll_loss(x, put(target):narrow(1, 1, n), { weight = put(weight):to(x_type) })
              else
                local t = kind == "classes" and put(target):narrow(1, 1, n)
                  or put(shares):narrow(2, 2, c):narrow(1, 1, n)
                loss = F.cross_entropy(x, t, { label_smoothing = 0.1, weight = put(weight) })
              end
              loss:backward()
              return loss, b.grad
            end, x_type)
          end
        end
      end
    end)

    it(("rows of %s weights with strides, picked by an index with strides"):format(x_type), function()
      local index = classes(25, 700)
      for _, width in ipairs { 1, 7, 8 } do
        local views = {
          ["a part of rows"] = function(w) return w:narrow(2, 2, width) end,
          transposed = function(w) return w:narrow(2, 1, width):t():contiguous():t() end,
          ["every other row"] = function(w) return w:narrow(2, 1, width)[{ { 1, 50, 2 } }] end,
        }
        local base, weights = draw(50, width + 3):to(x_type), draw(700 * width)
        for name, view in pairs(views) do
          agrees(("embedding, %d, %s"):format(width, name), function(put)
            local w = leaf(put, base)
            local y = F.embedding(put(index):view(70, 10):t(), view(w))
            backward(y, put(weights))
            return y, w.grad
          end, x_type)
        end
      end
    end)
  end

  it("cat and stack of every type, with strides of any kind, and nothing", function()
    for _, a in ipairs { "float32", "bfloat16", "float16", "int64", "bool" } do
      for _, b in ipairs { "float32", "bfloat16", "int32", "uint8" } do
        local one, two = (draw(5, 13) * 3):to(a), (draw(13, 7) * 3):abs():to(b)
        local what = a .. " and " .. b
        agrees("cat of " .. what, function(put)
          local x, y = put(one), put(two)
          return tensor.cat({ x:narrow(2, 2, 9), y:t():narrow(2, 3, 9), x:narrow(1, 1, 0):narrow(2, 1, 9),
            x[{ { 1, 5, 2 }, { 3, 11 } }] }, 1),
            tensor.cat({ x:narrow(2, 2, 9), y:t():narrow(1, 2, 5), x[{ {}, { 1, 13, 2 } }] }, 2)
        end)
        agrees("stack of " .. what, function(put)
          return tensor.stack({ put(one):narrow(2, 2, 9), put(two):t():narrow(1, 2, 5):narrow(2, 3, 9) }, 2)
        end)
      end
    end
  end)

  it("optimizers' steps over parameters and gradients that start anywhere", function()
    local first, grads = {}, {}
    for k, s in ipairs { { 1 }, { 3, 5 }, { 7, 1 }, { 33, 17 }, { 2, 3, 5 }, { 1025 }, { 4099 } } do
      first[k], grads[k] = draw(unpack(s)), draw(unpack(s))
    end
    -- t in memory behind `before` other numbers
    local function placed(put, t, before)
      return put(tensor.cat { tensor.zeros(before), t:flatten() }):narrow(1, 1 + before,
        t:numel()):view(t.shape)
    end
    for _, name in ipairs { "SGD", "AdamW", "NAdam", "Adagrad", "RMSprop", "Rprop", "Lion", "Adafactor" } do
      agrees(name, function(put)
        local parameters = {}
        for k, t in ipairs(first) do parameters[k] = placed(put, t, k % 4):requires_grad_() end
        local optimizer = optim[name](parameters, { lr = 0.01 })
        for step = 1, 3 do
          for k, t in ipairs(parameters) do
            t.grad = not (step == 2 and k == 3) and placed(put, grads[k] * step, 3 - k % 4) or nil
          end
          nn.utils.clip_grad_norm_(parameters, 3)
          optimizer:step()
        end
        return unpack(parameters)
      end)
    end
  end)

  it("reads memory as another type", function()
    local x, half = draw(5, 6), draw(3, 8):to("bfloat16")
    local image = draw(1, 2, 5, 7)
    agrees("float32", function(put)
      local d = put(x)
      return d:view("float64"):view("int32") % 1024, d:narrow(2, 3, 4):view("complex64"):abs(),
        d:t():view("int32"):double(),
        tensor.repeat_interleave(put(tensor.tensor({ 2, 0, 3 }, { dtype = "int64" })))
    end)
    agrees("bfloat16", function(put) return put(half):view("float32"):view("bfloat16"):t() * 2 end)
    agrees("a size kept", function(put) return F.adaptive_avg_pool2d(put(image), { -1, 3 }) end)
  end)

  it("reads and writes at int32 positions with strides", function()
    local base, rows = draw(40, 9), draw(30, 14)
    local picks = tensor.randint(0, 40, { 60, 18 }, { dtype = "int32", generator = generator })
    agrees("int32 positions", function(put)
      local leaf_x, leaf_s = leaf(put, base), leaf(put, rows)
      local x, s = leaf_x:narrow(2, 2, 7), leaf_s[{ {}, { 1, 14, 2 } }]
      local index = put(picks)[{ { 1, 60, 2 }, { 2, 15, 2 } }]
      local list = put(picks)[{ { 1, 60, 2 }, 1 }]
      local ys = { x:gather(1, index), x:scatter_add(1, index, s), x:scatter(1, index, 2),
        x:scatter_reduce(1, index, s, "amax"), x:index_add(1, list, s, { alpha = 2 }),
        x:index_select(1, list), x:index_reduce(1, list, s, "amin"), tensor.embedding(index % 40, x),
        x:take_along_dim(index:long() - 40, 1) }
      local loss = 0
      for _, y in ipairs(ys) do loss = loss + (y * y):sum() end
      loss:backward()
      ys[#ys + 1], ys[#ys + 2] = leaf_x.grad, leaf_s.grad
      return unpack(ys)
    end)
    local z = tensor.tensor(3)
    agrees("0-d", function(put)
      return put(z):index_select(1, put(tensor.zeros({ 1 }, { dtype = "int64" })))
    end)
  end)

  it("adds to bool tensors with strides", function()
    local x, s = draw(40, 9):gt(1), draw(300, 14):gt(0.5)
    local picks = classes(40, 300, 7)
    agrees("bool", function(put)
      local to, from, index = put(x):narrow(2, 2, 7), put(s)[{ {}, { 1, 14, 2 } }], put(picks)
      return to:scatter_add(1, index, from), to:index_add(1, index:select(2, 1), from),
        to:index_add(1, index:select(2, 1), from, { alpha = 0 })
    end)
  end)
end)
