local core = require "accelerate.core"
local data = require "accelerate.data"
local disk = require "spec.support.disk"
local fuzz = require "spec.support.fuzz_files"
local host = require "spec.support.host"
local reference = require "spec.reference.files_reference"
local raises = require("spec.support.messages").raises

local T = data.transforms
local has_plugin, why = pcall(data.decode_image, disk.from_hex(reference.pictures.png[1]))

local function test(name, body)
  it(name, function()
    if not has_plugin and tostring(why):find("libax_image.so", 1, true) then
      return pending("needs libax_image.so")
    end
    body()
  end)
end

local function difference(a, b) return (a:to("float32") - core.tensor(b):to("float32")):abs():max():item() end

describe("pictures", function()
  local path = os.tmpname()
  teardown(function() os.remove(path) end)

  test("are read as Pillow reads them", function()
    for name, case in pairs(reference.pictures) do
      local image = data.decode_image(disk.from_hex(case[1]), "UNCHANGED")
      assert.equal("uint8", image.dtype)
      assert.same({ #case[2], 9, 12 }, image.shape, name)
      -- libraries may round JPEG otherwise
      assert.is_true(difference(image, case[2]) <= (name:find("jpeg") and 2 or 0), name)
    end
  end)

  test("come in colour or grey as asked", function()
    local grey, colour = disk.from_hex(reference.pictures.png_grey[1]), disk.from_hex(
      reference.pictures.png[1])
    assert.same({ 3, 9, 12 }, data.decode_image(grey).shape)
    assert.same({ 1, 9, 12 }, data.decode_image(colour, "GRAY").shape)
    assert.is_true(difference(data.decode_image(colour, "GRAY"), reference.pictures.png_grey[2]) <= 2)
    assert.same({ 1, 9, 12 }, data.decode_image(disk.from_hex(reference.pictures.jpeg[1]), "GRAY").shape)
    assert.same({ 3, 9, 12 }, data.decode_image(disk.from_hex(reference.pictures.jpeg_grey[1])).shape)
    raises("the mode must be one of RGB, GRAY, UNCHANGED", data.decode_image, colour, "rgb")
  end)

  test("say what is wrong with their file", function()
    local function read(bytes)
      disk.write(path, bytes)
      return data.read_image(path)
    end
    for _, name in ipairs { "png", "jpeg", "jpeg_progressive" } do
      local bytes = disk.from_hex(reference.pictures[name][1])
      raises("damaged " .. name:match("^%a+"):upper(), read, bytes:sub(1, math.floor(#bytes * 0.7)))
    end
    raises("neither JPEG nor PNG: it starts with 68 65 6c 6c", read, "hello, world")
    raises("0 bytes; expected a JPEG or PNG file", read, "")
    raises("a JPEG in CMYK colours", read, disk.from_hex(reference.jpeg_cmyk))
    raises("'/nowhere/x.png': cannot be opened", data.read_image, "/nowhere/x.png")
    local png = disk.from_hex(reference.pictures.png[1])
    local zlib_crc = png:sub(30, 33) -- of the header chunk; a larger width makes it wrong
    raises("damaged PNG", read, png:sub(1, 16) .. "\0\15\66\64" .. png:sub(21, 29) .. zlib_crc ..
      png:sub(34))
    local jpeg = disk.from_hex(reference.pictures.jpeg[1])
    local frame = jpeg:find("\255\192", 1, true)
    raises("bytes cannot hold that much", read, jpeg:sub(1, frame + 4) .. "\40\0\40\0" ..
      jpeg:sub(frame + 9))
  end)

  test("survive damage", function()
    for _, name in ipairs { "png", "png_palette", "jpeg", "jpeg_progressive" } do
      assert.is_true(fuzz.damage(path, disk.from_hex(reference.pictures[name][1]), data.read_image,
        { every = 11, rounds = 100 }) > 20)
    end
  end)

  test("lie in folders, one for each class", function()
    host.in_folder(function(root)
      os.execute(("mkdir -p '%s/dog' '%s/cat/more' '%s/empty'"):format(root, root, root))
      disk.write(root .. "/dog/b.PNG", disk.from_hex(reference.pictures.png[1]))
      disk.write(root .. "/dog/a.jpg", disk.from_hex(reference.pictures.jpeg[1]))
      disk.write(root .. "/cat/more/c.jpeg", disk.from_hex(reference.pictures.jpeg_grey[1]))
      disk.write(root .. "/dog/notes.txt", "not a picture")
      raises("/empty has no pictures", data.ImageFolder, root)
      os.execute(("rmdir '%s/empty'"):format(root))
      local set = data.ImageFolder(root,
        { transform = T.Compose { T.ToTensor(), T.Normalize({ 0.5, 0.5, 0.5 }, 0.5) } })
      assert.same({ "cat", "dog" }, set.classes)
      assert.same({ 0, 1, 1 }, set.targets)
      local image, label = set:get(2)
      assert.same({ 3, 9, 12 }, image.shape)
      assert.equal(1, label)
      for x, y in data.DataLoader(set, { batch_size = 3, num_workers = 1 }):iter() do
        assert.same({ 3, 3, 9, 12 }, x.shape)
        assert.same({ 0, 1, 1 }, y:totable())
      end
      assert.equal(3, data.load_dataset("imagefolder", { data_dir = root }).train:len())
      disk.write(root .. "/cat/more/c.jpeg", "broken")
      raises("sample 1: ", function() return data.DataLoader(set, { batch_size = 3 }):iter()() end)
      raises("cannot read the directory", data.ImageFolder, root .. "/nowhere")
    end)
  end)

  test("name what to install when the plugin is missing", function()
    host.in_folder(function(folder)
      os.execute(("mkdir -p '%s/bin' && cp '%s' '%s/bin/accel-run' && ln -s '%s' '%s/lua' && " ..
        "cp '%s'/libax_cpu_*.so '%s/bin/'"):format(folder, host.path, folder,
        io.popen("pwd"):read "*l" .. "/lua", folder, host.path:match("^(.*)/"), folder))
      local pipe = io.popen(
        ([['%s/bin/accel-run' -e "require('accelerate.data').decode_image('\\255\\216\\255\\224')" ]] ..
        "2>&1"):format(folder))
      local said = pipe:read "*a"
      pipe:close()
      assert.truthy(said:find("install libjpeg-dev and libpng-dev", 1, true), said)
    end)
  end)
end)

describe("transforms", function()
  local image = core.tensor(reference.pictures.png[2], { dtype = "uint8" })

  it("resize as Pillow does", function()
    for name, size in pairs { smaller = { 4, 5 }, larger = { 15, 20 }, wide = { 3, 17 } } do
      assert.is_true(difference(T.Resize(size)(image), reference["resized_" .. name]) <= 1, name)
      assert.is_true(difference(T.Resize(size)(image:to("float32")), reference["resized_" .. name]) <= 1,
        name)
    end
    assert.same({ 3, 18, 24 }, T.Resize(18)(image).shape)
    assert.same({ 3, 6, 8 }, T.Resize(6)(image).shape)
    assert.equal(image, T.Resize({ 9, 12 })(image))
    assert.same({ 3, 1, 1 }, T.Resize({ 1, 1 }, { antialias = false })(image).shape)
    raises("expected a picture [channels, height, width], got a float32 tensor of shape [2, 3]",
      T.Resize(3), core.ones(2, 3))
    raises("expected a picture, uint8 or float32", T.Resize(3), core.ones(1, 2, 3, { dtype = "int64" }))
    raises("the height must be at least 1, got 0", T.Resize, 0)
  end)

  it("crop, flip and pad", function()
    local small = core.arange(12):view(1, 3, 4):to("uint8")
    assert.same({ { { 5, 6 } } }, T.CenterCrop({ 1, 2 })(small):totable())
    assert.same({ { { 0, 0, 0, 0, 0, 0 }, { 0, 0, 1, 2, 3, 0 }, { 0, 4, 5, 6, 7, 0 }, { 0, 8, 9, 10, 11, 0 },
      { 0, 0, 0, 0, 0, 0 } } },
      T.CenterCrop({ 5, 6 })(small):totable())
    assert.same({ { { 3, 2, 1, 0 }, { 7, 6, 5, 4 }, { 11, 10, 9, 8 } } },
      T.RandomHorizontalFlip(1)(small):totable())
    assert.equal(small, T.RandomHorizontalFlip(0)(small))
    assert.same({ 1, 2, 2 }, T.RandomCrop(2)(small).shape)
    assert.same({ 1, 5, 5 }, T.RandomCrop(5, { padding = 1 })(small).shape)
    assert.same({ 1, 9, 9 }, T.RandomCrop(9, { pad_if_needed = true, fill = 7 })(small).shape)
    assert.same({ 1, 8, 6 }, T.RandomResizedCrop({ 8, 6 })(small:to("float32")).shape)
    raises("a picture of 3 x 4 pixels, padded by 0, is smaller than 4 x 4", T.RandomCrop(4), small)
    assert.same({ 1, 4, 3 }, T.CenterCrop({ 4, 3 })(small:transpose(2, 3)).shape)
  end)

  it("scale", function()
    assert.near(reference.pictures.png[2][1][1][2] / 255, T.ToTensor()(image)[{ 1, 1, 2 }]:item(), 1e-7)
    local x = T.Normalize({ 0.5, 0.25, 0 }, { 0.5, 0.25, 1 })(core.full({ 3, 1, 1 }, 0.75))
    assert.same({ { { 0.5 } }, { { 2 } }, { { 0.75 } } }, x:totable())
    raises("use ToTensor before it", T.Normalize(0.5, 0.5), image)
    raises("mean has 2 entries, the picture 3 channels", T.Normalize({ 0, 0 }, 1), core.ones(3, 2, 2))
    raises("std[1] must be above 0", T.Normalize, 0, 0)
    raises("Compose: entry 2 must be a function, got 5", T.Compose, { T.ToTensor(), 5 })
  end)

  it("draw the same for any number of workers", function()
    local set = { len = function() return 12 end, get = function(_, i) return T.Compose {
      T.RandomCrop(5, { padding = 2 }), T.RandomHorizontalFlip(), T.RandomResizedCrop(4),
      T.ToTensor() }(image), i end }
    local function read(workers)
      local sums = {}
      for x in data.DataLoader(set, { batch_size = 3, num_workers = workers }):iter() do
        sums[#sums + 1] = x:sum():item()
      end
      return sums
    end
    local expected = read(0)
    assert.not_equal(expected[1], expected[2])
    assert.same(expected, read(1))
    assert.same(expected, read(2))
  end)
end)
