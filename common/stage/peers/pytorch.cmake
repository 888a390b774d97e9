# Target `peers`: builds peer_pytorch.so where python3 has a PyTorch with CUDA. PyTorch's own CMake package is not used:
# it looks for a CUDA of its own and stops the configuration when it does not like what it finds.

# PyTorch's folder, the ABI of its strings (0 or 1) and its version. -DBOOK_PYTORCH="folder;1;2.11.0" names another one.
if(NOT BOOK_PYTORCH)
  find_program(BOOK_PYTHON python3)
  mark_as_advanced(BOOK_PYTHON)
  set(pytorch "")
  if(BOOK_PYTHON)
    execute_process(
      COMMAND ${BOOK_PYTHON} -c "
import os, torch
if torch.version.cuda:
    print(os.path.dirname(torch.__file__), int(torch.compiled_with_cxx11_abi()), torch.__version__, sep=';', end='')"
      OUTPUT_VARIABLE pytorch ERROR_QUIET)
  endif()
  set(BOOK_PYTORCH "${pytorch}" CACHE STRING "PyTorch for the peers: folder;ABI;version" FORCE)
endif()

add_custom_target(peers)
list(LENGTH BOOK_PYTORCH parts)
if(parts EQUAL 3)
  list(GET BOOK_PYTORCH 0 folder)
  list(GET BOOK_PYTORCH 1 abi)
  list(GET BOOK_PYTORCH 2 version)
endif()
if(NOT parts EQUAL 3 OR NOT EXISTS "${folder}/lib/libtorch_cuda.so")
  message(STATUS "Peers: none, python3 has no PyTorch with CUDA")
  return()
endif()
message(STATUS "Peers: PyTorch ${version}")

add_library(peer_pytorch MODULE EXCLUDE_FROM_ALL stage/peers/pytorch.cpp)
add_dependencies(peers peer_pytorch)
set_target_properties(peer_pytorch PROPERTIES PREFIX "" BUILD_RPATH "${folder}/lib")
target_include_directories(peer_pytorch SYSTEM PRIVATE "${folder}/include" ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(peer_pytorch PRIVATE _GLIBCXX_USE_CXX11_ABI=${abi} BOOK_PYTORCH_VERSION="${version}")
# All of them, although the file calls functions of libtorch_cpu only: libtorch_cuda registers what these dispatch to.
target_link_options(peer_pytorch PRIVATE -Wl,--no-as-needed)
target_link_libraries(peer_pytorch PRIVATE "${folder}/lib/libtorch_cuda.so" "${folder}/lib/libtorch_cpu.so"
                                           "${folder}/lib/libc10_cuda.so" "${folder}/lib/libc10.so")
