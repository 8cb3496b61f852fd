-- lua/accelerate/plot and `accel-run plot`.
local core = require "accelerate.core"
local font = require "accelerate.plot.font"
local host = require "spec.support.host"
local plot = require "accelerate.plot"
local tensor = require "accelerate.tensor"
local terminal = require "accelerate.utils.terminal"

local has_utf8 = terminal.has_utf8

describe("plot", function()
  before_each(function() terminal.has_utf8 = function() return true end end)
  after_each(function() terminal.has_utf8 = has_utf8 end)

  local function text(figure, width, height)
    return figure:text { width = width, height = height, colours = false }
  end

  it("draws a line through the corners, with round numbers on the axes", function()
    local lines = {}
    for line in (text(plot.curves { 0, 10 }, 24, 6) .. "\n"):gmatch("(.-)\n") do lines[#lines + 1] = line end
    assert.equal(6, #lines)
    assert.matches("^10 ", lines[1])
    assert.matches("^ 0 ", lines[5])
    assert.matches("1 +.*2$", lines[6])
    assert.is_truthy(lines[1]:find("[\226].-$") and not lines[5]:find("\226\161\135 *\226$"))
  end)

  it("has two numbers on each axis at least, however little room there is", function()
    local svg = plot.histogram({ -3.3, 0, 4.3 }, { bins = 4 }):svg { width = 230, height = 120 }
    local below, height = 0, {}
    for y, number in svg:gmatch '<text[^>]- y="([%d.]+)"[^>]*>([%-%d.]+)</text>' do
      height[y] = (height[y] or 0) + 1
      below = math.max(below, height[y])
      assert(tonumber(number))
    end
    assert.is_true(below >= 2, svg)
  end)

  it("draws the rows of a terminal without UTF-8 in ASCII", function()
    terminal.has_utf8 = function() return false end
    for _, figure in ipairs { plot.curves { 1, 3, 2 }, plot.bars { 1, 2 }, plot.histogram { 1, 1, 2 },
      plot.image(tensor.rand(4, 4)) } do
      assert.is_nil(text(figure, 30, 8):find("[\128-\255]"))
    end
  end)

  it("names several curves, and leaves gaps where numbers are none", function()
    local figure = plot.curves({ b = { 1, 0 / 0, 2 }, a = { x = { 5, 6 }, y = tensor({ 3, 4 }) } },
      { title = "T", x_label = "step" })
    local first, second, rest = text(figure, 40, 8):match("^([^\n]*)\n([^\n]*)\n(.*)$")
    assert.matches("^ +T$", first)
    assert.matches("^ +a  b$", second)
    assert.matches("step$", rest)
    assert.matches("\27%[36m", figure:text { colours = true })
  end)

  it("writes long titles, labels and legends in several lines", function()
    local curves = {}
    for i = 1, 6 do curves["a long name " .. i] = { i, 2 * i } end
    local label = "one two three four five six seven eight nine"
    local lines = text(plot.curves(curves, { title = label, x_label = label, y_label = label }), 30, 30)
    local words = lines:gsub("%s+", " ")
    for i = 1, 6 do assert.is_truthy(lines:find("a long name " .. i, 1, true)) end
    assert.equal(3, select(2, words:gsub(label, "")))
    assert.matches("seven eight", text(plot.bars { { label, 1 }, { "b", 2 } }, 30, 12))
  end)

  it("writes a name wider than the picture in several lines, beside a curve without a name", function()
    local lines = text(plot.curves { [""] = { 1, 2 }, ["one two three four five six seven"] = { 2, 1 } }, 24,
      12)
    assert.matches("one two three.*five six seven", lines)
  end)

  it("turns the label of y where the picture can", function()
    local svg = plot.curves({ 1, 2 }, { y_label = "loss" }):svg()
    assert.matches('rotate%(%-90 [%d. ]+%)" fill="#333333">loss</text>', svg)
  end)

  it("keeps the highest tick's text within the picture", function()
    local svg = plot.curves({ 0, 10 }):svg { width = 200, height = 100 }
    assert.is_true(tonumber(svg:match('y="([%d.-]+)" fill="#333333">10<')) >= 11)
  end)

  it("has room for all bars, and says how many a given height leaves out", function()
    local values = {}
    for i = 1, 30 do values[i] = i end
    assert.matches("\n30 [^\n]+ 30$", text(plot.bars(values), 40))
    assert.matches(">30</text>", plot.bars(values):svg())
    assert.matches("\n3 [^\n]+\nand 27 more$", text(plot.bars(values), 40, 4))
    assert.matches("\n4 [^\n]+$", text(plot.bars { 1, 2, 3, 4 }, 40, 4))
  end)

  it("puts several figures into one picture", function()
    local grid = plot.grid({ plot.curves({ 1, 2 }, { title = "left" }), plot.bars({ a = 1 }),
      plot.image(tensor.zeros(1, 4, 4), { title = "below" }) }, { title = "all" })
    local lines = text(grid, 60)
    assert.matches("^ +all\n +left +a [^\n]+ 1\n", lines)
    assert.matches("\n +below\n", lines)
    local svg = grid:svg()
    assert.matches('<image x="[%d.]+" y="[%d.]+" width="%d+" height="%d+"', svg)
    assert.matches('height="594"', svg)
  end)

  it("draws a picture in a grid into its own place", function()
    local black, white = tensor.zeros(2, 2), tensor.ones(2, 2)
    local grid = plot.grid({ plot.image(white), plot.image(black) })
    assert.equal("████████", (text(grid, 20, 4):match("^[^ \n]+")))
    local colours = grid:text { width = 20, height = 4, colours = true }
    assert.is_truthy(colours:find("38;2;255;255;255", 1, true) < colours:find("38;2;0;0;0", 1, true))
    assert.equal("\0\0\0\100\0\0\0\60", grid:png({ width = 100, height = 60 }):sub(17, 24))
  end)

  it("nests grids, in pictures too small for them", function()
    local one = plot.curves({ 1, 2 }, { title = "a title", x_label = "x", y_label = "y" })
    local grid = plot.grid({ one, plot.grid({ one, one, one }) }, { columns = 1 })
    assert.matches("</svg>", grid:svg { width = 100, height = 60 })
    assert.equal("\137PNG", grid:png({ width = 100, height = 60 }):sub(1, 4))
    assert.is_true(#text(grid, 20, 4) > 0)
  end)

  it("takes any numbers", function()
    for _, list in ipairs { {}, { 0 / 0 }, { 1 / 0, -1 / 0 }, { 1e308, -1e308 }, { 5e-324, 0 },
      { 1e17, 1e17 }, { 7 }, { -1, -2 } } do
      for _, log in ipairs { false, true } do
        for _, figure in ipairs { plot.curves(list, { log = log }), plot.bars(list), plot.histogram(list) } do
          assert(#figure:text { width = 30, height = 6 } >= 0)
          assert.matches("</svg>", figure:svg())
          assert.equal("\137PNG", figure:png():sub(1, 4))
        end
      end
    end
  end)

  it("has a logarithmic scale", function()
    local lines = text(plot.curves({ 0.01, 1, 100 }, { log = true }), 40, 12)
    assert.matches("^ 100 ", lines)
    assert.matches("0%.01 ", lines)
  end)

  it("counts values into bins", function()
    local svg = plot.histogram({ 0, 0, 0, 1 }, { bins = 2 }):svg { width = 200, height = 100 }
    local heights = {}
    for height in svg:gmatch('<rect x=[^>]- height="([%d.]+)"') do
      heights[#heights + 1] = tonumber(height)
    end
    assert.equal(2, #heights)
    assert.is_true(math.abs(heights[1] - 3 * heights[2]) < 1)
  end)

  it("writes bars with their names, in SVG with what needs it escaped", function()
    local figure = plot.bars { { "a<b", 2 }, { "c", -1 } }
    assert.matches("a<b .* 2\n", text(figure, 40, 6))
    assert.matches("a&lt;b</text>", figure:svg())
  end)

  it("writes PNG files of the size given, and pictures with their pixels", function()
    local bytes = plot.curves({ 1, 2 }):png { width = 300, height = 200 }
    assert.equal("\0\0\1\44\0\0\0\200", bytes:sub(17, 24))
    local picture = tensor.zeros(3, 2, 5)
    assert.equal("\0\0\0\5\0\0\0\2", plot.image(picture):png():sub(17, 24))
    host.in_folder(function(folder)
      plot.image(picture):save(folder .. "/a.png")
      plot.curves({ 1 }):save(folder .. "/a.svg")
      plot.curves({ 1 }):save(folder .. "/a.txt", { width = 30 })
      assert.has_error(function() plot.curves({ 1 }):save(folder .. "/none/a.svg") end)
    end)
  end)

  it("gives notebooks an SVG and a PNG picture, and print a text", function()
    local figure = plot.curves { 1, 2 }
    local texts = getmetatable(figure).__mime(figure)
    assert.equal(figure:svg(), texts["image/svg+xml"])
    assert.equal(figure:png(), require("accelerate.utils.base64").decode(texts["image/png"]))
    assert.matches("\226", tostring(figure))
  end)

  it("says what is wrong", function()
    for _, case in ipairs { { function() plot.curves("x") end,
      "plot.curves: expected numbers, or a table of them by name" },
      { function() plot.curves { a = { 1, "x" } } end, "plot.curves: a: entry 2 must be a number, got 'x'" },
      { function() plot.curves { x = { 1 }, y = { 1, 2 } } end, "has 1 x and 2 y" },
      { function() plot.curves({ 1 }, { titel = "x" }) end, "did you mean 'title'" },
      { function() plot.curves({ 1 }):save("a.gif") end, "a name that ends in .png, .svg or .txt" },
      { function() plot.grid {} end, "plot.grid: expected a list of figures" },
      { function() plot.grid { plot.curves { 1 }, 2 } end, "plot.grid: entry 2 must be a figure, got 2" },
      { function() plot.image(tensor.zeros(2)) end, "plot.image: a picture has 2 dims" } } do
      local fine, message = pcall(case[1])
      assert.is_false(fine)
      assert.is_truthy(tostring(message):find(case[2], 1, true), message)
    end
    assert.is_true(core.is_tensor(tensor.zeros(1)))
  end)
end)

describe("plot's letters", function()
  local pixels = require "accelerate.plot.pixels"
  local is_there = font.is_there

  after_each(function() font.is_there = is_there end)

  -- How many pixels of a canvas are neither white nor of the text's own colour, and how many are
  -- not white.
  local function shades(canvas)
    local mixed, dark = 0, 0
    for _, row in ipairs(canvas.tensor:totable()) do
      for _, pixel in ipairs(row) do
        if pixel[1] < 255 then dark = dark + 1 end
        if pixel[1] < 255 and pixel[1] ~= 51 then mixed = mixed + 1 end
      end
    end
    return mixed, dark
  end

  local function written(text, upwards)
    local canvas = pixels.new(100, 100)
    canvas:text(10, 60, text, nil, upwards)
    return canvas
  end

  it("are dots where the system has no letters", function()
    font.is_there = function() return false end
    local canvas = written("Abc")
    local mixed, dark = shades(canvas)
    assert.equal(0, mixed)
    assert.is_true(dark > 0)
    assert.equal(3 * canvas.cw, canvas:measure("Abc"))
    assert.equal(canvas:measure("abc"), canvas:measure("iii"))
  end)

  it("turn without a change, dots too", function()
    for _, there in ipairs { false, is_there() } do
      font.is_there = function() return there end
      local across, upwards = select(2, shades(written("Abc"))), select(2, shades(written("Abc", true)))
      assert.is_true(across > 0)
      assert.equal(across, upwards)
    end
  end)

  it("are smooth and as wide as they need, where the system has them", function()
    if not font.is_there() then return pending("no Cairo here") end
    assert.is_true(font.measure("WWW") > 2 * font.measure("iii"))
    assert.is_true(shades(written("Abc")) > 0)
  end)

  it("take any text", function()
    if not font.is_there() then return pending("no Cairo here") end
    for _, text in ipairs { "", "\0", "\255", "a\226", "\237\160\128", "\n\t", "é日", ("x"):rep(1e5) } do
      written(text)
      written(text, true)
    end
    assert.equal(font.measure("a?"), font.measure("a\226"))
    assert.equal(font.measure("a b"), font.measure("a\0b"))
  end)
end)

describe("accel-run plot", function()
  it("draws a training log in the terminal and into files", function()
    host.in_folder(function(folder)
      local path = folder .. "/metrics.jsonl"
      local file = assert(io.open(path, "w"))
      file:write('{"config": {"lr": 1}, "time": 1}\n')
      for step = 1, 20 do
        file:write(('{"loss": %g, "accuracy": %g, "step": %d, "time": 1.5}\n'):format(1 / step, step / 20,
          10 * step))
      end
      file:write('{"loss": "NaN", "step": 210, "time": 2}\n')
      file:close()
      local env = { env = { LC_ALL = "C.UTF-8" } }
      local status, out = host.run({ "plot", path, "--width", "60", "--height", "10" }, env)
      assert.equal(0, status)
      assert.matches("accuracy  loss", out)
      assert.matches("100 .*200", out)
      assert.is_nil(out:find("time"))
      status, out = host.run({ "plot", path, "--keys", "loss", "--output", folder .. "/a.svg" }, env)
      assert.same({ 0, "" }, { status, out })
      local svg = assert(io.open(folder .. "/a.svg")):read("*a")
      assert.is_nil(svg:find("accuracy"))
      local none, err
      status, none, err = host.run { "plot", path, "--keys", "los" }
      assert.equal("", none)
      assert.same({ 1, ("accel-run plot: %s has no numbers called 'los'\n"):format(path) }, { status, err })
      file = assert(io.open(path, "a"))
      file:write("{\n")
      file:close()
      status, none, err = host.run { "plot", path }
      assert.same({ 1, "" }, { status, none })
      assert.matches("metrics.jsonl:23: json: ", err)
    end)
  end)
end)
