# The CUDA language and libraries: thinwire_cuda is what every target with CUDA code links. Included where THINWIRE_CUDA is on.
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)

# CMake 3.25 adds no flag for C++20 with this compiler, in silence, and would refuse where it is required (else it takes the setting
# for C++): the flag is passed by hand, and cuda_probe.cu asserts that it arrives.
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
option(THINWIRE_CUDA_SPILLS "Let the compiler report registers and spills of every kernel" OFF)
# No fast maths: it flushes subnormals and approximates divisions, so that non-finite numbers and tolerances would suffer.
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
if(THINWIRE_CUDA_SPILLS)  # a report for tests/gpu/gpu_check.py and tests: registers, spills, shared memory of every kernel
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v,-warn-spills>)
endif()
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
string(REPLACE ";" " " THINWIRE_CUDA_ARCHITECTURES_TEXT "${CMAKE_CUDA_ARCHITECTURES}")

# A toolkit may come without these; the Python wheels of PyTorch bring them, with a numbered file name alone.
set(THINWIRE_CUDA_LIBS "" CACHE STRING "More folders to look for cuBLASLt, NVRTC and cuDNN in")
set(THINWIRE_CUDA_INCLUDES "" CACHE STRING "More folders to look for their headers in")
foreach(library cublasLt nvrtc)
  if(NOT TARGET CUDA::${library})
    find_library(THINWIRE_${library} NAMES ${library} lib${library}.so.13 HINTS ${THINWIRE_CUDA_LIBS} REQUIRED)
    add_library(CUDA::${library} UNKNOWN IMPORTED)
    set_target_properties(CUDA::${library} PROPERTIES IMPORTED_LOCATION ${THINWIRE_${library}})
  endif()
endforeach()
find_path(CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${THINWIRE_CUDA_INCLUDES} REQUIRED)

# cuDNN and its headers-only front end: fused attention. Toolkit first, then the Python wheels, which carry libcudnn.so.9 alone.
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDNN_ROOT}/include $ENV{CUDNN_ROOT}/include ${CUDAToolkit_INCLUDE_DIRS} ${THINWIRE_CUDA_INCLUDES})
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDNN_ROOT}/lib $ENV{CUDNN_ROOT}/lib ${CUDAToolkit_LIBRARY_ROOT}/lib ${CUDAToolkit_LIBRARY_DIR} ${THINWIRE_CUDA_LIBS})
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${CMAKE_SOURCE_DIR}/.cache/cudnn-frontend/include NO_DEFAULT_PATH)
option(THINWIRE_CUDNN "cuDNN's attention, where cuDNN and its front end are" ON)
if(THINWIRE_CUDNN AND NOT (CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY AND CUDNN_FRONTEND_INCLUDE_DIR))
  set(THINWIRE_CUDNN OFF)
  message(STATUS "Fused attention: OFF (cuDNN headers ${CUDNN_INCLUDE_DIR}, library ${CUDNN_LIBRARY}, front end ${CUDNN_FRONTEND_INCLUDE_DIR};"
    " scripts/install_deps.sh fetches the front end)")
endif()

# NCCL: communication between GPUs; the toolkit first, then the Python wheels, which carry libnccl.so.2 alone.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT}/include $ENV{NCCL_ROOT}/include ${CUDAToolkit_INCLUDE_DIRS} ${THINWIRE_CUDA_INCLUDES})
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${NCCL_ROOT}/lib $ENV{NCCL_ROOT}/lib ${CUDAToolkit_LIBRARY_ROOT}/lib ${CUDAToolkit_LIBRARY_DIR} ${THINWIRE_CUDA_LIBS})
option(THINWIRE_NCCL "NCCL between GPUs, where it is; else several ranks talk through the host" ON)
if(THINWIRE_NCCL AND NOT (NCCL_INCLUDE_DIR AND NCCL_LIBRARY))
  set(THINWIRE_NCCL OFF)
  message(STATUS "NCCL: OFF (header ${NCCL_INCLUDE_DIR}, library ${NCCL_LIBRARY}); ranks on GPUs talk through the host")
endif()

add_library(thinwire_cuda INTERFACE)
target_link_libraries(thinwire_cuda INTERFACE CUDA::cudart_static CUDA::cublasLt)
target_include_directories(thinwire_cuda SYSTEM INTERFACE $<BUILD_INTERFACE:${CUBLASLT_INCLUDE_DIR}>)
set_property(GLOBAL APPEND PROPERTY THINWIRE_LIBRARIES thinwire_cuda)
