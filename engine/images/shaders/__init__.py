"""Fragment shaders in GLSL ES 3.00 that compute images, run by OpenGL ES in a process of their own."""
