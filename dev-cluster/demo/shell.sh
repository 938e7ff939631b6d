# Knows nothing of Isonomy: says which GPU it sees and works for a while.
echo "GPU $CUDA_VISIBLE_DEVICES"
sleep 40
