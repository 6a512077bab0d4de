# cmake -D FOLDER=src/server/page -D "NAMES=index.html;app.js" -D OUTPUT=page_files.cpp -P EmbedPage.cmake
# Writes one C++ source that holds the files of the web page, their types and their ETags.

set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml; charset=utf-8")

set(entries "")
foreach(name IN LISTS NAMES)
    set(file ${FOLDER}/${name})
    string(REGEX REPLACE "^.*\\." "" extension ${name})
    if(NOT DEFINED type_${extension})
        message(FATAL_ERROR "EmbedPage: ${file}: add the content type of .${extension} files")
    endif()
    if(name STREQUAL "index.html")
        set(path "/")
    elseif(extension STREQUAL "html")
        string(REGEX REPLACE "\\.html$" "" path "/${name}")
    else()
        set(path "/assets/${name}")
    endif()
    file(SHA256 ${file} hash)
    string(SUBSTRING ${hash} 0 32 tag)
    file(SIZE ${file} size)
    file(READ ${file} bytes HEX)
    # One short literal a line: compilers are slow on very long lines.
    string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${bytes}")
    string(REPEAT "\\\\x.." 32 line)
    string(REGEX REPLACE "(${line})" "\\1\"\n        \"" bytes "${bytes}")
    string(APPEND entries
        "    {\"${path}\", \"${type_${extension}}\", \"\\\"${tag}\\\"\",\n     std::string_view(\n        \"${bytes}\",\n        ${size})},\n")
endforeach()

file(WRITE ${OUTPUT}
"// Made from src/server/page by cmake/EmbedPage.cmake.
#include \"server/page/files.h\"

namespace percheron::server {
namespace {

constexpr PageAsset files[] = {
${entries}};

}  // namespace

std::span<const PageAsset> embedded_page_files() { return files; }

}  // namespace percheron::server
")
