# How CUDA sources are compiled, wherever they are.  The runtime is linked statically, so that a
# program needs nothing on its machine but the driver.

# CMake 3.25 does not know how a compiler as new as CUDA 13's is told its dialect.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

add_library(percheron_cuda_options INTERFACE)
# 554: views.h converts Rows<T> to Rows<const T>, which for a const T is never called.
target_compile_options(percheron_cuda_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra --expt-relaxed-constexpr -lineinfo
    -Xfatbin=-compress-all -Xcudafe --diag_suppress=554>)
target_include_directories(percheron_cuda_options INTERFACE
    ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})

# percheron_cuda_room(NAME FOLDER folder DEPENDS rooms...): like percheron_room, with the folder's
# .cu files.
function(percheron_cuda_room name)
    cmake_parse_arguments(ARG "" "FOLDER" "DEPENDS" ${ARGN})
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${ARG_FOLDER}/*.cu
        ${PROJECT_SOURCE_DIR}/src/${ARG_FOLDER}/*.cpp)
    set(rooms ${ARG_DEPENDS})
    list(TRANSFORM rooms PREPEND percheron_)
    add_library(percheron_${name} STATIC ${sources})
    # Kernels of several files have the same short names.
    set_target_properties(percheron_${name} PROPERTIES UNITY_BUILD OFF)
    target_link_libraries(percheron_${name} PUBLIC percheron_options percheron_cuda_options ${rooms})
endfunction()
