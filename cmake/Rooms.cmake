# How a room (a folder of src/) becomes a library, and its tests one program.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(percheron_options INTERFACE)
target_include_directories(percheron_options INTERFACE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# Warnings are errors for the compilers that changes are tried with (Debian 12's).  Newer ones find
# new warnings, some of them mistaken, and those must not stop whoever only builds.
set(werror)
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13) OR
   (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15))
    set(werror -Werror)
endif()
# Contraction is off so that a formula means the same on every compiler; kernels ask for fused
# multiply-adds by name.
target_compile_options(percheron_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic ${werror} -ffp-contract=off>)
# Joined files are included by one that looks like their user, from whom a type that holds an unnamed
# namespace's would be kept.
if(CMAKE_UNITY_BUILD)
    target_compile_options(percheron_options INTERFACE
        $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
foreach(sanitizer IN LISTS PERCHERON_SANITIZE)
    target_compile_options(percheron_options INTERFACE
        $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${sanitizer} -fno-omit-frame-pointer>)
    target_link_options(percheron_options INTERFACE -fsanitize=${sanitizer})
endforeach()
# Between the instructions of a sanitizer g++ 12 loses sight of whether an optional's value was set.
if(PERCHERON_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(percheron_options INTERFACE
        $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
endif()
# Clang before 16 cannot assemble coroutines with the data that this check puts before functions.
if(PERCHERON_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(percheron_options INTERFACE
        $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=function>)
endif()

# percheron_room(NAME [FOLDER folder] [DEPENDS rooms...] [LINK libraries...])
# Every .cpp directly in the folder belongs to the room.
function(percheron_room name)
    cmake_parse_arguments(ARG "" "FOLDER" "DEPENDS;LINK" ${ARGN})
    if(NOT ARG_FOLDER)
        set(ARG_FOLDER ${name})
    endif()
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${ARG_FOLDER}/*.cpp)
    set(rooms ${ARG_DEPENDS})
    list(TRANSFORM rooms PREPEND percheron_)
    if(sources)
        add_library(percheron_${name} STATIC ${sources})
        target_link_libraries(percheron_${name} PUBLIC percheron_options ${rooms} PRIVATE ${ARG_LINK})
    else()
        add_library(percheron_${name} INTERFACE)
        target_link_libraries(percheron_${name} INTERFACE percheron_options ${rooms})
    endif()
endfunction()

# percheron_tests(NAME [DEPENDS rooms...] [LINK libraries...]): tests/NAME/*_test.cpp as one program.
# Tests find data by PERCHERON_SOURCE_DIR and may start build/percheron by PERCHERON_BINARY.
function(percheron_tests name)
    cmake_parse_arguments(ARG "" "" "DEPENDS;LINK" ${ARGN})
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${name}/*_test.cpp)
    if(NOT sources)
        return()
    endif()
    set(rooms ${ARG_DEPENDS})
    list(TRANSFORM rooms PREPEND percheron_)
    add_executable(${name}_test ${sources})
    target_include_directories(${name}_test PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${name}_test PRIVATE ${rooms} ${ARG_LINK} GTest::gmock GTest::gtest_main)
    # Files of tests name their helpers as they like.
    set_target_properties(${name}_test PROPERTIES UNITY_BUILD OFF)
    # Test code is compiled for the builder's patience, not for speed; the rooms keep their flags.
    target_compile_options(${name}_test PRIVATE $<$<CONFIG:Release>:-O1>)
    target_compile_definitions(${name}_test PRIVATE PERCHERON_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    if(TARGET percheron)
        target_compile_definitions(${name}_test PRIVATE PERCHERON_BINARY="$<TARGET_FILE:percheron>")
    endif()
    gtest_discover_tests(${name}_test TEST_PREFIX ${name}. NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60)
endfunction()
