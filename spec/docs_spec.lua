-- The generated pages are those that the op table makes now.
describe("docs", function()
  it("are what `make docs` writes", function()
    local f = assert(io.open("docs/reference/ops.md"), "no docs/reference/ops.md; run make docs")
    local stored = f:read("*a")
    f:close()
    assert.is_true(stored == dofile("host/tools/gendoc.lua").ops_page(), "docs/reference/ops.md is out of date; run make docs")
  end)
end)
