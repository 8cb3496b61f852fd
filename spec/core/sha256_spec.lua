-- SHA-256 and HMAC-SHA-256 beside the published examples: FIPS 180-4's (by NIST), RFC 4231's.
local core = require "accelerate.core"

-- The bytes that hexadecimal digits stand for.
local function hex(digits)
  return (digits:gsub("%x%x", function(two) return string.char(tonumber(two, 16)) end))
end

describe("SHA-256", function()
  it("has the values of the standard's examples", function()
    assert.are.equal("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", core._sha256(""))
    assert.are.equal("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", core._sha256("abc"))
    assert.are.equal("248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
      core._sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))
    assert.are.equal("cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
      core._sha256(("a"):rep(1000000)))
  end)

  -- By Python's hashlib.
  it("pads texts that end around the length's place in a block", function()
    local known = {
      [55] = "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318",
      [56] = "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a",
      [63] = "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34",
      [64] = "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb",
      [119] = "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb",
      [120] = "2f3d335432c70b580af0e8e1b3674a7c020d683aa5f73aaaedfdc55af904c21c",
    }
    for n, sum in pairs(known) do assert.are.equal(sum, core._sha256(("a"):rep(n))) end
  end)
end)

describe("HMAC-SHA-256", function()
  it("has the values of RFC 4231", function()
    local function code(key, text) return core._hmac_sha256(hex(key), hex(text)) end
    assert.are.equal("b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
      core._hmac_sha256(("\11"):rep(20), "Hi There"))
    assert.are.equal("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
      core._hmac_sha256("Jefe", "what do ya want for nothing?"))
    assert.are.equal("773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
      code(("aa"):rep(20), ("dd"):rep(50)))
    assert.are.equal("60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
      core._hmac_sha256(("\170"):rep(131), "Test Using Larger Than Block-Size Key - Hash Key First"))
  end)

  it("takes a text in pieces, and a key of a whole block", function()
    local key = ("k"):rep(64)
    local whole = ("0123456789"):rep(40)
    for _, cut in ipairs { 0, 1, 63, 64, 65, 127, 128, 400 } do
      assert.are.equal(core._hmac_sha256(key, whole), core._hmac_sha256(key, whole:sub(1, cut),
        whole:sub(cut + 1)))
    end
  end)

  it("is compared whole", function()
    assert.is_true(core._same_text("", ""))
    assert.is_true(core._same_text("abc", "abc"))
    assert.is_false(core._same_text("abc", "abd"))
    assert.is_false(core._same_text("xbc", "abc"))
    assert.is_false(core._same_text("abc", "ab"))
  end)
end)
