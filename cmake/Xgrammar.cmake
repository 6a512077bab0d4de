# xgrammar's C++ core as a library of our own flags: no fast mathematics and no link-time
# optimisation, which would reach into the rest of the program.  Its headers are seen by
# src/grammar alone.
set(XGRAMMAR_VERSION 0.2.9)
set(folder ${PROJECT_SOURCE_DIR}/third_party/xgrammar-${XGRAMMAR_VERSION})
if(NOT EXISTS ${folder}/complete)
    message(FATAL_ERROR "xgrammar ${XGRAMMAR_VERSION} is not in third_party/; run `make setup`, which fetches it")
endif()

file(GLOB sources ${folder}/cpp/*.cc ${folder}/cpp/converter_ext/*.cc ${folder}/cpp/support/*.cc)
# Its log: ours stands in.
list(REMOVE_ITEM sources ${folder}/cpp/support/logging.cc)
list(APPEND sources ${PROJECT_SOURCE_DIR}/src/grammar/core/log.cpp)
add_library(percheron_xgrammar STATIC ${sources})
target_include_directories(percheron_xgrammar SYSTEM PUBLIC
    ${folder}/include ${folder}/3rdparty/dlpack/include)
target_include_directories(percheron_xgrammar SYSTEM PRIVATE ${folder}/3rdparty/picojson)
target_compile_definitions(percheron_xgrammar PUBLIC
    XGRAMMAR_LOG_CUSTOMIZE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
# Its code has warnings of its own.  Sanitizers watch it as they watch ours.
target_compile_options(percheron_xgrammar PRIVATE -w -O2 -ffp-contract=off)
foreach(sanitizer IN LISTS PERCHERON_SANITIZE)
    target_compile_options(percheron_xgrammar PRIVATE
        -fsanitize=${sanitizer} -fno-omit-frame-pointer)
endforeach()
# Its files share little: joined they take as long.
set_target_properties(percheron_xgrammar PROPERTIES UNITY_BUILD OFF)
# Front ends that nobody here calls, linked because the rest names them.
foreach(name structural_tag lark_converter json_schema_converter converter_ext/cohere
        converter_ext/deepseek converter_ext/gemma converter_ext/minimax_m3)
    set_source_files_properties(${folder}/cpp/${name}.cc PROPERTIES COMPILE_OPTIONS -O1)
endforeach()
